//! What a node owes a store that stands still when it is paid.

use std::time::Duration;

use tidegate_testkit::{Redis, eventually};

use crate::promises::LOCAL;
use crate::redis_world::{Node, PATIENCE, check, look, pass};

/// The node pays while the store stands still, and has long stopped listening when the store goes on.
#[test]
fn what_is_owed_and_paid_into_a_long_pause_of_the_store_is_charged() {
    is_charged_when_paid_into_a_long_pause(|_| ());
}

/// Then the store cannot say that it lacks a script: nobody hears it.
#[test]
fn what_is_owed_and_paid_into_a_pause_of_a_store_that_lost_its_scripts_is_charged() {
    is_charged_when_paid_into_a_long_pause(|redis| drop(redis.cmd(&["SCRIPT", "FLUSH"])));
}

#[track_caller]
fn is_charged_when_paid_into_a_long_pause(prepare: impl FnOnce(&Redis)) {
    let redis = Redis::start();
    // So long that the pause is overload at first: then debts are paid at once.
    let node = Node::ready(&redis.url(), "1s", LOCAL);
    let (mut client, user) = (node.client(), [("user", "42")]);
    assert_eq!(look(&mut client, &user).remaining, 1000);
    prepare(&redis);
    redis.pause();
    assert_eq!(check(&mut client, &user, 1).source, "overload_local");
    pass(Duration::from_secs(6));
    redis.resume();
    eventually("it is charged", PATIENCE, || look(&mut client, &user).remaining == 999);
}
