//! What a session, a sign-in link or a token comes from. It ends with that, and never outlives it.

use std::time::Duration;

use tidegate_rules::Timestamp;

use crate::tokens::Role;

/// What a secret belongs to, and ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whoever can write the database: it belongs to no token.
    Operator,
    /// A stored token, by its id.
    Token(String),
    /// A token of a node's configuration, by a name that its digest has. Only such a node knows whether it still exists.
    Configured(String),
}

impl Origin {
    /// As text, which is another one for each.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Origin::Operator => String::new(),
            Origin::Token(id) => format!("{TOKEN}{id}"),
            Origin::Configured(name) => format!("config:{name}"),
        }
    }

    pub(crate) fn of(text: &str) -> Self {
        match (text.strip_prefix(TOKEN), text) {
            (Some(id), _) => Origin::Token(id.to_owned()),
            (None, "") => Origin::Operator,
            // An unknown one of another release is no node's.
            (None, text) => Origin::Configured(text.strip_prefix("config:").unwrap_or_default().to_owned()),
        }
    }
}

/// Before the id of a token that is an origin; SQL statements have it, too.
pub(crate) const TOKEN: &str = "token:";

/// What an authenticated caller has and may pass on: to a session, a sign-in link, or a token for another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The token that it belongs to.
    pub origin: Origin,
    /// The id of the session that passes it on, if it is one: what comes from a session ends when that is signed out.
    pub session: Option<String>,
    /// The caller's name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// When it ends; `None` for never.
    pub until: Option<Timestamp>,
}

impl Grant {
    /// The name of who signs in with a link that an operator made, until that person gives one.
    pub const OPERATORS_LINK: &str = "sign-in link";

    /// What the operator of the database has: everything.
    #[must_use]
    pub fn of_operator(name: &str) -> Self {
        Grant {
            origin: Origin::Operator,
            session: None,
            name: name.to_owned(),
            role: Role::Admin,
            until: None,
        }
    }

    /// When something ends that is made now and would last for `lasts`.
    pub(crate) fn end_after(&self, now: Timestamp, lasts: Duration) -> Timestamp {
        let end = Timestamp::from_micros(
            now.as_micros().saturating_add(u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX)),
        );
        self.until.map_or(end, |until| until.min(end))
    }
}
