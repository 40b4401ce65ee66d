//! All that can be wrong with a configuration before anything is opened, bound or made on disk: the same for `serve`, which
//! begins with it, and for `validate --config`.

use std::sync::Arc;

use tidegate_access::Offers;
use tidegate_admin::{Metrics, RuleSource};
use tidegate_rules::RuleSet;

use super::backend::Backend;
use super::data_plane::check_domains;
use super::secrets::Reloads;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::settings::proxy::check_identity;

/// Checks what `settings` need: files of listeners that are on, tokens, the store's address and files, the proxy. `rules` are
/// those of files; where they come from a database, nobody knows them yet.
pub(crate) fn check(settings: &Settings, rules: Option<&RuleSet>) -> Result<(), Failure> {
    let rules = rules.filter(|_| settings.control.source != RuleSource::Database);
    let (tls, mut files) = (&settings.tls, Reloads::default());
    let listeners = [
        ("http", settings.http, &tls.http, Offers::Http),
        ("grpc", settings.grpc, &tls.grpc, Offers::Http2),
        ("resp", settings.resp, &tls.resp, Offers::Nothing),
        ("admin", settings.admin, &tls.admin, Offers::Http1),
    ];
    for (name, _, tls, offers) in listeners.into_iter().filter(|(_, address, ..)| address.is_some()) {
        files.load(name, tls.as_ref(), offers)?;
    }
    settings.access.load("access.tokens")?;
    settings.admin_tokens.load("admin.tokens")?;
    if let Some(proxy) = &settings.proxy {
        proxy.settings(Arc::new(check_identity("", &settings.identity)?), settings.drain.tunnels)?;
        proxy.address()?;
        proxy.tls()?;
        rules.map_or(Ok(()), |rules| check_domains(proxy, rules))?;
    }
    // It connects to nothing.
    Backend::open(settings, &Arc::new(Metrics::new()))?;
    Ok(())
}
