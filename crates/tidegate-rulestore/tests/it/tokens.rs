//! Tokens: only digests are kept, and each has an end.

use tidegate_rules::Timestamp;
use tidegate_rulestore::{NewToken, Role, RuleStore, Secret, TokenKind};

use crate::world::{NOW, ann, on_both};

fn after(micros: u64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() + micros)
}

async fn create(store: &RuleStore, expires: Option<Timestamp>) -> Secret {
    let token = NewToken { name: "ci".into(), role: Role::Editor, expires };
    store.create_token(&token, &ann(), NOW).await.unwrap().1
}

on_both!(a_token_is_known_by_its_secret_alone, |database| {
    let store = database.store().await;
    let secret = create(&store, None).await;
    let known = store.verify(&secret, TokenKind::Token, NOW).await.unwrap().unwrap();
    assert_eq!((&*known.name, known.role, &*known.author, known.expires), ("ci", Role::Editor, "ann", None));
    let forged = secret.reveal().split_at(20).0.to_owned() + &"0".repeat(secret.reveal().len() - 20);
    assert_eq!(store.verify(&Secret::parse(&forged).unwrap(), TokenKind::Token, NOW).await.unwrap(), None);
    assert_eq!(store.verify(&secret, TokenKind::Session, NOW).await.unwrap(), None, "of another kind");
});

on_both!(a_token_ends_when_it_says, |database| {
    let store = database.store().await;
    let secret = create(&store, Some(after(10))).await;
    assert!(store.verify(&secret, TokenKind::Token, after(9)).await.unwrap().is_some());
    assert!(store.verify(&secret, TokenKind::Token, after(10)).await.unwrap().is_none());
});

on_both!(a_revoked_token_is_none, |database| {
    let store = database.store().await;
    let secret = create(&store, None).await;
    assert!(store.revoke_token(secret.id(), &ann(), NOW).await.unwrap());
    assert_eq!(store.verify(&secret, TokenKind::Token, NOW).await.unwrap(), None);
    assert!(!store.revoke_token(secret.id(), &ann(), NOW).await.unwrap());
});

on_both!(a_secret_that_has_ended_is_known_for_ever_and_a_guess_is_not, |database| {
    let store = database.store().await;
    let (expired, revoked) = (create(&store, Some(after(10))).await, create(&store, None).await);
    assert!(store.revoke_token(revoked.id(), &ann(), NOW).await.unwrap());
    // A year later, when another one is made, the rows of both are gone.
    let token = NewToken { name: "new".into(), role: Role::Viewer, expires: None };
    store.create_token(&token, &ann(), after(365 * 86_400_000_000)).await.unwrap();
    assert_eq!(store.tokens().await.unwrap().len(), 1);
    for ended in [&expired, &revoked] {
        assert!(store.has_ended(ended).await.unwrap());
    }
    let guess = format!("{}{}", &expired.reveal()[..40], &revoked.reveal()[40..]);
    assert!(!store.has_ended(&Secret::parse(&guess).unwrap()).await.unwrap());
});

on_both!(a_secret_is_nowhere_in_the_database, |database| {
    let store = database.store().await;
    let secret = create(&store, None).await;
    let tokens = store.tokens().await.unwrap();
    assert_eq!(tokens.len(), 1);
    let own_part = secret.reveal().rsplit('_').next().unwrap();
    assert!(!format!("{tokens:?}").contains(own_part));
    if let Some(path) = database.url.strip_prefix("sqlite:") {
        store.close().await;
        for file in [path.to_owned(), format!("{path}-wal")] {
            let bytes = std::fs::read(file).unwrap_or_default();
            assert!(!bytes.windows(own_part.len()).any(|window| window == own_part.as_bytes()));
        }
    }
});
