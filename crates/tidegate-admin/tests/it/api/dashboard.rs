//! The page and its files, as a browser asks for them.

use tidegate_testkit::http;

use super::world::Node;

#[test]
fn the_page_loads_its_own_files_alone_and_none_of_them_needs_a_token() {
    let node = Node::start();
    let page = http::get(node.address, "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let text = page.text();
    let files: Vec<&str> = text.split("\"./").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(files.iter().any(|file| file.ends_with(".js")), "{text}");
    for file in files {
        let answer = http::get(node.address, &format!("/{file}"));
        assert_eq!(answer.status, 200, "{file}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{file}");
    }
}

#[test]
fn no_inline_script_or_style_may_run_in_the_page() {
    let node = Node::start();
    let page = http::get(node.address, "/");
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{part} in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
}

#[test]
fn a_file_beside_the_dashboard_is_not_served() {
    let node = Node::start();
    for path in [
        "/assets/../index.html",
        "/assets/%2e%2e%2fCargo.toml",
        "/assets/..%2f..%2fsrc%2flib.rs",
        "/assets/x.js",
    ] {
        assert_eq!(http::get(node.address, path).status, 404, "{path}");
    }
}
