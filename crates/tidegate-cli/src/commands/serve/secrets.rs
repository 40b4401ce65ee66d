//! Certificates and tokens from files: reloaded on SIGHUP, and when a file changes.
//!
//! Files with a mistake change nothing: the old ones stay in use, and the log says so.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_access::{Offers, ServerTls, TokenSource};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::signals::Done;
use crate::failure::Failure;
use crate::reload::{Look, Watch};
use crate::settings::listeners::ServerFiles;

/// What can be reloaded.
#[derive(Default)]
pub(super) struct Reloads {
    pub(super) tls: Vec<(&'static str, Arc<ServerTls>)>,
    pub(super) tokens: Vec<Arc<TokenSource>>,
}

/// Which results of a reload are logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    All,
    Mistakes,
}

impl Reloads {
    /// Loads the certificate of a listener, if it has one, and registers it for reloads.
    pub(super) fn load(
        &mut self,
        listener: &'static str,
        files: Option<&ServerFiles>,
        offers: Offers,
    ) -> Result<Option<Arc<ServerTls>>, Failure> {
        let tls = files.map(|files| files.load(&format!("tls.{listener}"), offers)).transpose()?;
        self.tls.extend(tls.clone().map(|tls| (listener, tls)));
        Ok(tls)
    }

    /// Runs until dropped.
    pub(super) async fn run(self, mut hangups: mpsc::Receiver<Done>) {
        let paths: Vec<PathBuf> = self.paths();
        let mut watch = Watch::new(paths.iter().map(PathBuf::as_path));
        // They were read before the watch started: a change in between would never be noticed.
        self.reload(Tell::Mistakes);
        let mut found = Look::Same;
        loop {
            let _done = tokio::select! {
                Some(done) = hangups.recv() => {
                    watch.forget_changes();
                    found = Look::Changed;
                    Some(done)
                }
                () = sleep(Watch::pause_after(found)) => {
                    found = watch.look();
                    None
                }
            };
            if found == Look::Changed {
                self.reload(Tell::All);
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        let certificates = self.tls.iter().flat_map(|(_, tls)| tls.files().paths());
        let tokens = self.tokens.iter().filter_map(|tokens| tokens.file());
        certificates.chain(tokens).map(ToOwned::to_owned).collect()
    }

    fn reload(&self, tell: Tell) {
        for (listener, tls) in &self.tls {
            match tls.reload() {
                Ok(()) if tell == Tell::Mistakes => {}
                Ok(()) => tracing::info!(listener, "certificate reloaded"),
                Err(error) => tracing::error!(
                    listener,
                    error = &error as &dyn std::error::Error,
                    "certificate not reloaded, the old one stays in use"
                ),
            }
        }
        for tokens in self.tokens.iter().filter(|tokens| tokens.file().is_some()) {
            match tokens.reload() {
                Ok(()) if tell == Tell::Mistakes => {}
                Ok(()) => tracing::info!("tokens reloaded"),
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "tokens not reloaded, the old ones stay in use"
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_file_that_changed_before_anybody_watched_it_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        fs::write(&file, "the-token-of-yesterday\n").unwrap();
        let tokens = Arc::new(TokenSource::load(Vec::new(), Some(file.clone())).unwrap());
        let reloads = Reloads { tls: Vec::new(), tokens: vec![tokens.clone()] };
        fs::write(&file, "the-token-of-today\n").unwrap();
        let (_hangups, hears) = mpsc::channel(1);
        let running = tokio::spawn(reloads.run(hears));
        let taken = async {
            while !tokens.accept(b"the-token-of-today") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), taken).await.expect("it is noticed");
        assert!(!tokens.accept(b"the-token-of-yesterday"));
        running.abort();
    }
}
