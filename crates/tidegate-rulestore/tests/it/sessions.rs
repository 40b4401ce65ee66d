//! Sessions and sign-in links: they end with what they came from, and there are never too many.

use std::time::Duration;

use tidegate_rules::Timestamp;
use tidegate_rulestore::{Grant, NewToken, Origin, Redeem, Role, RuleStore, Secret, TokenKind};

use crate::world::{NOW, ann, on_both};

const HOUR: Duration = Duration::from_secs(3_600);
const PEER: &str = "192.0.2.7";

fn after(seconds: u64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() + seconds * 1_000_000)
}

/// What a new token of a viewer may pass on.
async fn token(store: &RuleStore, expires: Option<Timestamp>) -> Grant {
    let new = NewToken { name: "ci".into(), role: Role::Viewer, expires };
    let (stored, _) = store.create_token(&new, &ann(), NOW).await.unwrap();
    let origin = Origin::Token(stored.id);
    Grant { origin, session: None, name: stored.name, role: stored.role, until: expires }
}

fn id_of(grant: &Grant) -> &str {
    let Origin::Token(id) = &grant.origin else { panic!("of no token") };
    id
}

async fn session(store: &RuleStore, from: &Grant) -> Secret {
    store.open_session(from, PEER, HOUR, NOW).await.unwrap().unwrap().1
}

async fn link(store: &RuleStore, from: &Grant) -> Secret {
    store.make_link(from, HOUR, NOW).await.unwrap().unwrap().1
}

async fn redeemed(store: &RuleStore, code: &Secret) -> Option<Secret> {
    store.redeem(code, Redeem::Session { peer: PEER }, HOUR, NOW).await.unwrap().map(|(_, secret)| secret)
}

async fn is_open(store: &RuleStore, session: &Secret) -> bool {
    store.verify(session, TokenKind::Session, NOW).await.unwrap().is_some()
}

/// What a session may pass on.
fn of(session: &Secret, from: &Grant) -> Grant {
    Grant { session: Some(session.id().to_owned()), until: Some(after(3_600)), ..from.clone() }
}

on_both!(everything_of_a_token_ends_when_it_is_revoked, |database| {
    let store = database.store().await;
    let (revoked, other) = (token(&store, None).await, token(&store, None).await);
    let (own, others) = (session(&store, &revoked).await, session(&store, &other).await);
    let kept = Redeem::Token { name: "laptop" };
    let code = link(&store, &revoked).await;
    let (kept, secret) = store.redeem(&code, kept, HOUR, NOW).await.unwrap().unwrap();
    let of_kept = Grant { origin: Origin::Token(kept.id), ..revoked.clone() };
    let of_kept = session(&store, &of_kept).await;
    let open_link = link(&store, &revoked).await;
    assert!(store.revoke_token(id_of(&revoked), &ann(), NOW).await.unwrap());
    assert!(!is_open(&store, &own).await && !is_open(&store, &of_kept).await);
    assert_eq!(store.verify(&secret, TokenKind::Token, NOW).await.unwrap(), None);
    assert_eq!(redeemed(&store, &open_link).await, None);
    assert!(is_open(&store, &others).await);
    assert_eq!(store.open_session(&revoked, PEER, HOUR, NOW).await.unwrap(), None, "it comes from nothing");
});

on_both!(what_came_from_a_session_ends_when_that_is_signed_out, |database| {
    let store = database.store().await;
    let from = token(&store, None).await;
    let first = session(&store, &from).await;
    let second = redeemed(&store, &link(&store, &of(&first, &from)).await).await.unwrap();
    let third = redeemed(&store, &link(&store, &of(&second, &from)).await).await.unwrap();
    let beside = session(&store, &from).await;
    assert!(store.end_session(first.id(), None, &ann(), NOW).await.unwrap());
    for ended in [&first, &second, &third] {
        assert!(!is_open(&store, ended).await);
    }
    assert!(is_open(&store, &beside).await);
});

on_both!(nothing_outlives_what_it_came_from, |database| {
    let store = database.store().await;
    let short = token(&store, Some(after(2))).await;
    let (link, code) = store.make_link(&short, HOUR, NOW).await.unwrap().unwrap();
    assert_eq!(link.expires, Some(after(2)));
    let into = Redeem::Session { peer: PEER };
    let (session, _) = store.redeem(&code, into, 12 * HOUR, after(1)).await.unwrap().unwrap();
    assert_eq!(session.expires, Some(after(2)));
    // A link lasts for less than what it came from, which is what counts.
    let day = token(&store, Some(after(86_400))).await;
    let (_, code) = store.make_link(&day, HOUR, NOW).await.unwrap().unwrap();
    let (session, _) = store.redeem(&code, into, 48 * HOUR, after(1)).await.unwrap().unwrap();
    assert_eq!(session.expires, Some(after(86_400)));
});

on_both!(a_log_in_code_works_once_whoever_is_first, |database| {
    let store = database.store().await;
    let secret = link(&store, &Grant::of_operator("sign-in link")).await;
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, secret) = (store.clone(), secret.clone());
        tries.spawn(async move { redeemed(&store, &secret).await.is_some() });
    }
    assert_eq!(tries.join_all().await.into_iter().filter(|worked| *worked).count(), 1);
});

on_both!(a_new_log_in_link_replaces_the_last_one_of_its_token_alone, |database| {
    let store = database.store().await;
    let (operator, viewer) = (Grant::of_operator("sign-in link"), token(&store, None).await);
    let (first, of_viewer) = (link(&store, &operator).await, link(&store, &viewer).await);
    let second = link(&store, &operator).await;
    assert_eq!(redeemed(&store, &first).await, None);
    assert!(redeemed(&store, &second).await.is_some() && redeemed(&store, &of_viewer).await.is_some());
});

on_both!(the_oldest_sessions_of_a_token_make_room_and_others_stay, |database| {
    let store = database.store().await;
    let (greedy, other) = (token(&store, None).await, token(&store, None).await);
    let others = session(&store, &other).await;
    let mut own = Vec::new();
    for second in 0..130 {
        let opened = store.open_session(&greedy, PEER, HOUR, after(second)).await.unwrap().unwrap();
        own.push(opened.1);
    }
    let open = store.sessions(Some(&greedy.origin), NOW).await.unwrap();
    let newest: Vec<&str> = own.iter().rev().take(100).map(Secret::id).collect();
    assert_eq!(open.iter().map(|one| &*one.id).collect::<Vec<_>>(), newest);
    assert!(is_open(&store, &others).await);
});

on_both!(a_session_that_makes_room_hands_on_what_came_from_it, |database| {
    let store = database.store().await;
    let from = token(&store, None).await;
    let first = session(&store, &from).await;
    let second = redeemed(&store, &link(&store, &of(&first, &from)).await).await.unwrap();
    let third = redeemed(&store, &link(&store, &of(&second, &from)).await).await.unwrap();
    // The first is used again and again, so that only the second has to go.
    database.raw("UPDATE tokens SET at_us = 1 WHERE kind = 'session' AND at_us < 1800000000000001").await;
    let second_is_oldest = format!("UPDATE tokens SET at_us = 0 WHERE id = '{}'", second.id());
    database.raw(second_is_oldest.leak()).await;
    for second in 1..=98 {
        store.open_session(&from, PEER, HOUR, after(second)).await.unwrap().unwrap();
    }
    assert!(
        !is_open(&store, &second).await && is_open(&store, &third).await && is_open(&store, &first).await
    );
    store.end_session(first.id(), None, &ann(), NOW).await.unwrap();
    assert!(!is_open(&store, &third).await);
});

on_both!(one_address_has_so_many_sessions_and_another_keeps_its_own, |database| {
    let store = database.store().await;
    let elsewhere = token(&store, None).await;
    let elsewhere = store.open_session(&elsewhere, "198.51.100.1", HOUR, NOW).await.unwrap().unwrap().1;
    for _ in 0..5 {
        let from = token(&store, None).await;
        for second in 1..=100 {
            store.open_session(&from, PEER, HOUR, after(second)).await.unwrap().unwrap();
        }
    }
    assert_eq!(store.sessions(None, NOW).await.unwrap().len(), 400 + 1);
    assert!(is_open(&store, &elsewhere).await);
});

on_both!(a_session_is_signed_out_by_its_own_token_or_by_anyone_who_may, |database| {
    let store = database.store().await;
    let (one, other) = (token(&store, None).await, token(&store, None).await);
    let (first, second) = (session(&store, &one).await, session(&store, &one).await);
    assert!(!store.end_session(first.id(), Some(&other.origin), &ann(), NOW).await.unwrap());
    assert!(store.end_session(first.id(), Some(&one.origin), &ann(), NOW).await.unwrap());
    assert!(store.end_session(second.id(), None, &ann(), NOW).await.unwrap());
    assert!(!store.end_session(second.id(), None, &ann(), NOW).await.unwrap());
    assert!(!store.end_session(id_of(&one), None, &ann(), NOW).await.unwrap(), "it is a token");
});

on_both!(a_link_that_cannot_become_a_token_still_works, |database| {
    let store = database.store().await;
    let from = token(&store, None).await;
    let kept = Redeem::Token { name: "laptop" };
    let code = link(&store, &from).await;
    let (kept_once, _) = store.redeem(&code, kept, HOUR, NOW).await.unwrap().unwrap();
    let of_kept = Grant { origin: Origin::Token(kept_once.id), ..from };
    let code = link(&store, &of_kept).await;
    assert!(store.redeem(&code, kept, HOUR, NOW).await.is_err());
    assert!(redeemed(&store, &code).await.is_some());
});

on_both!(a_database_is_claimed_by_its_first_log_in_for_ever, |database| {
    let store = database.store().await;
    assert!(store.is_unclaimed().await.unwrap());
    let code = link(&store, &Grant::of_operator("sign-in link")).await;
    assert!(store.is_unclaimed().await.unwrap(), "nobody has used it");
    redeemed(&store, &code).await.unwrap();
    assert!(!store.is_unclaimed().await.unwrap());
    database.raw("DELETE FROM tokens").await;
    assert!(!store.is_unclaimed().await.unwrap(), "the session has ended");
});
