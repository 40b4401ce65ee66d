//! An actix-web service that asks the limiter itself: no middleware, one check per request.
//!
//! ```text
//! cargo run -p example-actix                              # on 127.0.0.1:3000
//! for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/hello/ann; done
//! ```

use actix_web::http::header::RETRY_AFTER;
use actix_web::web::{Data, Path};
use actix_web::{App, HttpResponse, HttpServer, get};
use tidegate::rules::{Rule, Rules, TokenBucket};
use tidegate::{Ask, Limiter};

#[get("/hello/{name}")]
async fn hello(name: Path<String>, limiter: Data<Limiter>) -> HttpResponse {
    match Ask::new("api").with("name", &*name).check(&limiter).await {
        Ok(decision) if decision.allowed => HttpResponse::Ok().body(format!("hello {name}\n")),
        Ok(refused) => {
            // Rounded up: a client that comes back then passes.
            let wait = refused.retry_after().unwrap_or_default().as_secs() + 1;
            HttpResponse::TooManyRequests().insert_header((RETRY_AFTER, wait.to_string())).finish()
        }
        Err(error) => HttpResponse::InternalServerError().body(error.to_string()),
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let per_name = Rule::new("per-name").key(["name"]).limit(TokenBucket::per_minute(10).burst(3));
    // Clones of one limiter, one for each of actix's threads.
    let limiter = Data::new(tidegate::in_memory(Rules::new("api").rule(per_name))?);
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let server = HttpServer::new(move || App::new().app_data(limiter.clone()).service(hello));
    let server = server.workers(2).bind(listen)?;
    println!("listening {}", server.addrs()[0]);
    server.run().await?;
    Ok(())
}
