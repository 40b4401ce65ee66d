//! An axum service with limits per route, written in code, for users that it has authenticated itself.
//!
//! ```text
//! cargo run -p example-tenants                              # on 127.0.0.1:3000
//! for i in 1 2 3 4; do curl -i -H 'authorization: Bearer ann' http://127.0.0.1:3000/api/search; done
//! ```

use axum::extract::{Extension, Request};
use axum::http::{Response, header};
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use axum::{Router, response};
use tidegate::rules::{Rule, Rules, SlidingLog, TokenBucket};
use tidegate::{Decision, OnMissingKey, RateLimitLayer};
use tokio::net::TcpListener;

/// Whom the request is from, once that is known.
#[derive(Clone)]
struct User(String);

/// Searching is cheap, exporting is not, and nobody may guess passwords.
fn rules() -> Rules {
    Rules::new("api")
        .rule(
            Rule::new("search")
                .matches("path", "/api/search")
                .key(["user"])
                .limit(TokenBucket::per_minute(60).burst(3)),
        )
        .rule(Rule::new("export").matches("path", "/api/export").key(["user"]).limit(SlidingLog::per_hour(1)))
        .rule(Rule::new("all").key(["user"]).limit("1000/hour"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = tidegate::in_memory(rules())?;
    let layer = RateLimitLayer::builder(limiter, "api").also(["user"], |parts, attributes| {
        if let Some(User(name)) = parts.extensions.get() {
            attributes.push_everywhere("user", name.as_bytes());
        }
    });
    let layer = layer
        .build()?
        // A route that forgot to authenticate must not pass unlimited.
        .on_missing_key(OnMissingKey::Refuse)
        .on_refused(|refusal, _| {
            let rule = refusal.decision.as_ref().and_then(|decision| decision.rule());
            let text = match rule {
                Some(rule) => format!("{{\"error\":\"too many requests\",\"limit\":\"{rule}\"}}\n"),
                None => "{\"error\":\"who are you?\"}\n".to_owned(),
            };
            let answer = Response::builder().status(refusal.status());
            answer.header(header::CONTENT_TYPE, "application/json").body(text.into()).expect("a fine answer")
        });
    // Nested, and still known by its whole path.
    let api = Router::new().route("/search", get(search)).route("/export", post(|| async { "exported\n" }));
    let app = Router::new().nest("/api", api.layer(layer).layer(from_fn(authenticate)));
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(listen).await?;
    println!("listening {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// What is left is for the service to know, too.
async fn search(Extension(User(name)): Extension<User>, Extension(decision): Extension<Decision>) -> String {
    format!("{name} may search {} more times\n", decision.remaining().unwrap_or_default())
}

/// A stand-in for a session or a token that is checked.
async fn authenticate(mut request: Request, next: Next) -> response::Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(name) = token.and_then(|token| token.strip_prefix("Bearer ")) {
        let user = User(name.to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}
