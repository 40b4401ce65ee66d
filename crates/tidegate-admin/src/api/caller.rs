//! The authenticated caller: who it is, how it proved that, and whether the proof still holds.

use std::net::IpAddr;
use std::time::Duration;

use tidegate_access::{PeerGroup, SecretDigest};
use tidegate_core::Micros;
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Actor, Grant, Origin, Role, Secret, StoredToken, TokenKind};

use super::problem::Answer;
use crate::control::ControlPlane;

/// The authenticated caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    pub(crate) expires: Option<Timestamp>,
    /// The token that it has, or that its session belongs to.
    pub(crate) origin: Origin,
    /// Whose bounds on work and memory it is counted in: those of the token that everything it has comes from. Never its name,
    /// which others may have, too.
    pub(crate) lane: String,
    proof: Proof,
}

#[derive(Clone, Debug)]
enum Proof {
    /// A token of the configuration, which `origin` names.
    Configured,
    Token(Secret),
    Session(Secret),
}

impl Caller {
    /// The caller with this secret, if it is valid.
    pub(crate) async fn find(control: &ControlPlane, given: &[u8], kind: TokenKind) -> Answer<Option<Self>> {
        if kind != TokenKind::Session
            && let Some(tag) = control.accepted(given)
        {
            return Ok(Caller::configured(control, tag));
        }
        match std::str::from_utf8(given).ok().and_then(Secret::parse) {
            Some(secret) => Caller::stored(control, secret, kind).await,
            None => Ok(None),
        }
    }

    /// The holder of the configured token with this tag.
    fn configured(control: &ControlPlane, tag: String) -> Option<Self> {
        let (name, role) = control.configured(&tag)?;
        let (actor, origin) = (Actor { name, role }, Origin::Configured(tag));
        let lane = origin.text();
        Some(Caller { actor, expires: None, origin, lane, proof: Proof::Configured })
    }

    async fn stored(control: &ControlPlane, secret: Secret, kind: TokenKind) -> Answer<Option<Self>> {
        if kind == TokenKind::Session
            && let Some((tag, expires)) = control.access.sessions.find(&secret, control.clock.now())
        {
            return Ok(Caller::of_this_node(control, tag, expires, secret));
        }
        let Some(store) = &control.store else { return Ok(None) };
        let found = store.verify(&secret, kind, control.clock.now()).await?;
        Ok(found.and_then(|found| Caller::of(control, found, secret, kind)))
    }

    /// The holder of a session that this node keeps for a configured token.
    fn of_this_node(control: &ControlPlane, tag: String, expires: Timestamp, secret: Secret) -> Option<Self> {
        let caller = Caller::configured(control, tag)?;
        Some(Caller { expires: Some(expires), proof: Proof::Session(secret), ..caller })
    }

    /// Opens a session on this node for whoever has a configured token; none if `given` is not one.
    pub(crate) fn open_here(
        control: &ControlPlane,
        given: &[u8],
        peer: IpAddr,
        lasts: Duration,
    ) -> Answer<Option<Self>> {
        let Some(tag) = control.accepted(given) else { return Ok(None) };
        let (secret, now) = (Secret::random()?, control.clock.now());
        let expires = now + Micros::from_secs(lasts.as_secs());
        let from = PeerGroup::of(peer).to_string();
        control.access.sessions.open(&secret, &tag, &from, [now, expires]);
        Ok(Caller::of_this_node(control, tag, expires, secret))
    }

    /// The holder of a stored token or session.
    pub(crate) fn of(
        control: &ControlPlane,
        found: StoredToken,
        secret: Secret,
        kind: TokenKind,
    ) -> Option<Self> {
        let StoredToken { name, mut role, author, expires, origin, root, id, .. } = found;
        // A session ends with its token, which for a configured one is known here alone.
        if let Origin::Configured(tag) = &origin {
            role = role.min(control.configured(tag)?.1);
        }
        let own = Origin::Token(id);
        let (name, origin, proof) = match kind {
            TokenKind::Session => (name, origin, Proof::Session(secret)),
            // Whoever makes a token with a link may give it any name, another person's too. It acts as who made it.
            _ if root != Origin::Operator => (author, own.clone(), Proof::Token(secret)),
            TokenKind::Token | TokenKind::LogIn => (name, own.clone(), Proof::Token(secret)),
        };
        let lane = if root == Origin::Operator { own.text() } else { root.text() };
        Some(Caller { actor: Actor { name, role }, expires, origin, lane, proof })
    }

    /// Whether the caller would still be let in.
    pub(crate) async fn is_valid(&self, control: &ControlPlane) -> Answer<bool> {
        let (secret, kind) = match (&self.proof, &self.origin) {
            (Proof::Configured, Origin::Configured(tag)) => return Ok(control.configured(tag).is_some()),
            (Proof::Configured, _) => return Ok(false),
            (Proof::Token(secret), _) => (secret, TokenKind::Token),
            (Proof::Session(secret), _) => (secret, TokenKind::Session),
        };
        Ok(Caller::stored(control, secret.clone(), kind).await?.is_some())
    }

    /// The session's secret, if the caller is a browser.
    pub(crate) fn session(&self) -> Option<&Secret> {
        match &self.proof {
            Proof::Session(secret) => Some(secret),
            Proof::Configured | Proof::Token(_) => None,
        }
    }

    /// What the caller may pass on.
    pub(crate) fn grant(&self) -> Grant {
        Grant {
            origin: self.origin.clone(),
            session: self.session().map(|session| session.id().to_owned()),
            name: self.actor.name.clone(),
            role: self.actor.role,
            until: self.expires,
        }
    }

    /// Whose sessions the caller may see and end: everybody's (`None`), or only those of its own token.
    pub(crate) fn sees(&self) -> Option<&Origin> {
        (self.actor.role < Role::Admin).then_some(&self.origin)
    }
}

impl ControlPlane {
    /// The tag of a configured token; compared in constant time.
    fn accepted(&self, given: &[u8]) -> Option<String> {
        let known = self.access.tokens.iter().any(|token| token.digest.is_of(given))
            || self.access.admin_tokens.as_ref().is_some_and(|tokens| tokens.accept(given));
        known.then(|| SecretDigest::of(given).tag())
    }

    /// Whether the token that a session belongs to exists, as far as this node's configuration says.
    pub(crate) fn knows(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Configured(tag) => self.configured(tag).is_some(),
            Origin::Operator | Origin::Token(_) => true,
        }
    }

    /// Name and role of the configured token with this tag.
    pub(crate) fn configured(&self, tag: &str) -> Option<(String, Role)> {
        if let Some(token) = self.access.tokens.iter().find(|token| token.digest.tag() == tag) {
            return Some((token.name.clone(), token.role));
        }
        let admin = self.access.admin_tokens.as_ref().is_some_and(|tokens| tokens.has_tag(tag));
        admin.then(|| ("configured".to_owned(), Role::Admin))
    }
}
