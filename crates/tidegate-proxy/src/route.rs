//! Routing: the first route with a matching host and path.
//!
//! Paths arrive normalised, so that `//admin` and `/%61dmin` find the route that `/admin` finds.

/// A route from hosts and paths to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// `shop.example`, or `*.example` for everything below it; any host if absent. Without a port.
    pub host: Option<String>,
    /// A path and everything below it: `/api` is `/api` and `/api/x`, not `/apis`.
    pub path: String,
    /// The index of the upstream.
    pub upstream: usize,
    /// The domain whose rules apply, if not the proxy's.
    pub domain: Option<String>,
}

impl Route {
    /// Whether a request for this host (with or without a port) and this normalised path matches.
    pub(crate) fn fits(&self, host: &str, path: &str) -> bool {
        self.host.as_deref().is_none_or(|pattern| host_fits(pattern, host)) && path_fits(&self.path, path)
    }
}

/// The index of the first matching route.
pub(crate) fn find(routes: &[Route], host: &str, path: &str) -> Option<usize> {
    routes.iter().position(|route| route.fits(host, path))
}

fn host_fits(pattern: &str, host: &str) -> bool {
    // Not the colons of an IPv6 address, which ends with a bracket.
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    // `shop.example.` is the same name, fully qualified.
    let host = host.strip_suffix('.').unwrap_or(host);
    match pattern.strip_prefix('*') {
        Some(suffix) => {
            host.len() > suffix.len()
                && host.as_bytes()[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
        }
        None => host.eq_ignore_ascii_case(pattern),
    }
}

fn path_fits(prefix: &str, path: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(host: Option<&str>, path: &str) -> Route {
        Route { host: host.map(str::to_owned), path: path.to_owned(), upstream: 0, domain: None }
    }

    #[test]
    fn a_path_is_itself_and_all_below_it() {
        for prefix in ["/api", "/api/"] {
            let fits = |path| route(None, prefix).fits("any", path);
            assert!(fits("/api") && fits("/api/") && fits("/api/x"), "{prefix}");
            assert!(!fits("/apis") && !fits("/") && !fits("/v1/api"), "{prefix}");
        }
        assert!(route(None, "/").fits("any", "/") && route(None, "/").fits("any", "/x"));
    }

    #[test]
    fn a_host_is_compared_without_its_port_and_its_case() {
        let fits = |pattern, host| route(Some(pattern), "/").fits(host, "/");
        assert!(fits("shop.example", "Shop.Example:8443") && fits("shop.example", "shop.example."));
        assert!(!fits("shop.example", "shop.example.evil") && !fits("shop.example", ""));
        assert!(fits("*.example", "a.example") && fits("*.example", "a.b.example:80"));
        assert!(!fits("*.example", "example") && !fits("*.example", ".example.evil"));
        assert!(fits("[::1]", "[::1]:80") && fits("[::1]", "[::1]"));
    }

    #[test]
    fn the_first_route_that_fits_wins() {
        let routes = [route(Some("a"), "/x"), route(None, "/x"), route(None, "/")];
        assert_eq!(find(&routes, "a", "/x/1"), Some(0));
        assert_eq!(find(&routes, "b", "/x/1"), Some(1));
        assert_eq!(find(&routes, "b", "/y"), Some(2));
        assert_eq!(find(&routes[..2], "b", "/y"), None);
    }
}
