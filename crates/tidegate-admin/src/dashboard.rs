//! The dashboard: files that `dashboard/` builds and this binary embeds, so that it works offline and needs no Node.
//!
//! They contain no secrets: all data comes from the admin API, which authenticates the caller.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
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
    /// The same, packed with gzip when the dashboard was built.
    packed: &'static [u8],
}

macro_rules! assets {
    ($($name:literal as $media_type:literal),* $(,)?) => {
        &[$(Asset {
            name: $name,
            media_type: $media_type,
            bytes: include_bytes!(concat!("../dashboard/", $name)),
            packed: include_bytes!(concat!("../dashboard/", $name, ".gz")),
        }),*]
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
    let takes_gzip = headers.get_all(ACCEPT_ENCODING).iter().any(takes_gzip);
    let body = if takes_gzip { asset.packed } else { asset.bytes };
    let tag = tag_of(body);
    let always = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The browser revalidates each time and gets a 304 if nothing changed, so an upgrade shows at once.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
    ];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)], always).into_response();
    }
    let mut response = ([(ETAG, tag)], [(CONTENT_TYPE, asset.media_type)], always, body).into_response();
    if takes_gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// Whether a list of encodings has gzip without refusing it (`q=0`).
fn takes_gzip(list: &HeaderValue) -> bool {
    let list = list.to_str().unwrap_or_default().to_ascii_lowercase();
    list.split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_gzip = parts.next() == Some("gzip");
        is_gzip && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn tag_of(bytes: &[u8]) -> String {
    format!("\"{}\"", hex::encode(&Sha256::digest(bytes)[..12]))
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
        let both = |asset: &Asset| [asset.name.to_owned(), format!("{}.gz", asset.name)];
        let mut carried: Vec<String> = ASSETS.iter().flat_map(both).collect();
        built.sort();
        carried.sort();
        assert_eq!(built, carried);
    }

    /// gzip ends with the CRC-32 and the length of what it packs.
    #[test]
    fn every_packed_file_is_of_the_file_beside_it() {
        let crc = |bytes: &[u8]| {
            !bytes.iter().fold(!0u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                    (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
                })
            })
        };
        for asset in ASSETS {
            let (_, end) = asset.packed.split_last_chunk::<8>().expect("a trailer");
            let length = u32::try_from(asset.bytes.len()).expect("a small file");
            assert_eq!(
                end[..4],
                crc(asset.bytes).to_le_bytes(),
                "{}: run `cargo xtask dashboard`",
                asset.name
            );
            assert_eq!(end[4..], length.to_le_bytes(), "{}", asset.name);
        }
        let all: usize = ASSETS.iter().map(|asset| asset.packed.len()).sum();
        assert!(all < 250_000, "the dashboard is {all} bytes packed");
    }

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        let sent = |accepts: Option<&'static str>| {
            let headers = accepts.map(|accepts| (ACCEPT_ENCODING, HeaderValue::from_static(accepts)));
            let response = serve("index.html", &headers.into_iter().collect());
            response.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip")
        };
        assert!(sent(Some("gzip, deflate, br")) && sent(Some("br;q=1.0, GZIP;q=0.5")));
        assert!(!sent(None) && !sent(Some("br")) && !sent(Some("gzip;q=0")));
    }

    #[test]
    fn the_page_asks_no_other_origin() {
        let page = String::from_utf8_lossy(ASSETS[0].bytes);
        assert!(!page.contains("//"), "{page}");
    }
}
