//! Reports calls to servers, without depending on a metrics library.

/// Is notified of every call to a server of a store. It runs between two awaits: it must not block.
pub trait CallObserver: Send + Sync + 'static {
    /// A call to `server`, as [`Store::endpoint`](crate::Store::endpoint) names it, ended; `failure` is why it failed, as a name
    /// of few.
    fn called(&self, server: &str, failure: Option<&'static str>);
}

/// Ignores all calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallObserver;

impl CallObserver for NoCallObserver {
    fn called(&self, _: &str, _: Option<&'static str>) {}
}
