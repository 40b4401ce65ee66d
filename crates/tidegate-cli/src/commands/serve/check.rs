//! Validates a configuration before anything is opened, bound or created on disk. `serve` starts with it, and `validate
//! --config` does only this.

use std::sync::Arc;

use tidegate_access::Offers;
use tidegate_admin::RuleSource;
use tidegate_metrics::Metrics;

use super::backend::Backend;
use super::data_plane::check_domains;
use super::flags::read_file;
use super::regions;
use super::secrets::Reloads;
use crate::failure::Failure;
use crate::rules::LoadedRules;
use crate::settings::Settings;
use crate::settings::flags::FlagSource;
use crate::settings::proxy::check_identity;

/// Checks what `settings` need: files of enabled listeners, tokens, the store's address and files, the proxy. `loaded`
/// are those of files; if rules come from a database, they are not known yet.
pub(crate) fn check(settings: &Settings, loaded: Option<&LoadedRules>) -> Result<(), Failure> {
    let loaded = loaded.filter(|_| settings.control.source != RuleSource::Database);
    let rules = loaded.map(|loaded| &loaded.rules);
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
    if let Some(FlagSource::File(path)) = settings.flags.check()? {
        read_file(&path)?;
    }
    if let Some(xds) = &settings.xds {
        xds.server()?;
    }
    loaded.map_or(Ok(()), |loaded| regions::check(settings, loaded))?;
    // This does not connect.
    let homes = regions::open(settings, &Arc::new(Metrics::new()))?;
    let own = Backend::open(settings, &Arc::new(Metrics::new()))?;
    loaded.map_or(Ok(()), |loaded| regions::check_room(&own, &homes, loaded))
}
