//! The dashboard: files that `dashboard/` builds and this binary embeds, so that it works offline and needs no Node.
//!
//! They contain no secrets: all data comes from the admin API, which authenticates the caller.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

/// Scripts, styles and calls only from this origin; no inline script or style; no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// A file of the build.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal as $media_type:literal),* $(,)?) => {
        &[$(Asset { name: $name, media_type: $media_type, bytes: include_bytes!(concat!("../dashboard/", $name)) }),*]
    };
}

static ASSETS: &[Asset] = assets![
    "index.html" as "text/html; charset=utf-8",
    "favicon.svg" as "image/svg+xml",
    "assets/app.js" as "text/javascript; charset=utf-8",
    "assets/codemirror.js" as "text/javascript; charset=utf-8",
    "assets/index.css" as "text/css; charset=utf-8",
];

/// Serves the page and its files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(async |headers: HeaderMap| serve("index.html", &headers)))
        .route("/favicon.svg", get(async |headers: HeaderMap| serve("favicon.svg", &headers)))
        .route(
            "/assets/{file}",
            get(async |Path(file): Path<String>, headers: HeaderMap| {
                serve(&format!("assets/{file}"), &headers)
            }),
        )
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "the dashboard has no such file\n").into_response();
    };
    let tag = tag_of(asset.bytes);
    let always = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The browser revalidates each time and gets a 304 if nothing changed, so an upgrade shows at once.
        (CACHE_CONTROL, "no-cache"),
    ];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)], always).into_response();
    }
    ([(ETAG, tag)], [(CONTENT_TYPE, asset.media_type)], always, asset.bytes).into_response()
}

fn tag_of(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_was_built_is_carried() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
        let names = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(root.join(folder)).expect("the dashboard is built");
            let files = entries.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_file());
            files.map(|entry| format!("{folder}{}", entry.file_name().to_string_lossy())).collect()
        };
        let mut built = [names(""), names("assets/")].concat();
        let mut carried: Vec<String> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        built.sort();
        carried.sort();
        assert_eq!(built, carried);
    }

    #[test]
    fn the_page_asks_no_other_origin() {
        let page = String::from_utf8_lossy(ASSETS[0].bytes);
        assert!(!page.contains("//"), "{page}");
    }
}
