//! One Redis that dies, hangs, forgets or refuses under load: every request is answered in time by its rule's policy, and
//! exactly again soon after.

use std::time::Duration;

use tidegate_testkit::{Fault, FaultProxy, Redis, eventually, in_three_tries};

use crate::redis_outage::{Memory, NOTICED, Outage, Reach, TOO_SLOW};
use crate::redis_world::{
    DEFAULT, Load, Node, PATIENCE, PATIENT, POLICY_RULES, RECOVERED, alone, assert_exact, check, pass,
};

fn outage<'o>(what: &'o str, redis: &Redis, memory: Memory, millis: u64) -> Outage<'o> {
    Outage {
        what,
        url: redis.url(),
        lasts: Duration::from_millis(millis),
        noticed: NOTICED,
        memory,
        reach: Reach::All,
    }
}

#[test]
fn a_redis_that_is_killed_and_restarted() {
    let _alone = alone();
    let redis = Redis::start();
    let outage = outage("kill", &redis, Memory::Lost, 1_500);
    in_three_tries(|| outage.run(|| redis.kill(), || redis.restart()));
}

#[test]
fn a_redis_that_stands_still_for_five_seconds() {
    let _alone = alone();
    let redis = Redis::start();
    let outage = outage("SIGSTOP", &redis, Memory::Kept, 5_000);
    in_three_tries(|| outage.run(|| redis.pause(), || redis.resume()));
}

#[test]
fn a_redis_without_memory() {
    let _alone = alone();
    let redis = Redis::start();
    let most = |bytes: &str| drop(redis.cmd(&["CONFIG", "SET", "maxmemory", bytes]));
    let outage = outage("OOM", &redis, Memory::Kept, 1_500);
    in_three_tries(|| outage.run(|| most("1"), || most("0")));
}

/// It answers, if only that it is not ready: for as long as it reads what it wrote before.
#[test]
fn a_redis_that_is_loading() {
    let _alone = alone();
    let redis = Redis::builder()
        .config("key-load-delay 5000")
        .config("loading-process-events-interval-bytes 1024")
        .start();
    for key in 0..600 {
        redis.cmd(&["SET", &format!("filler-{key}"), &"x".repeat(100)]);
    }
    let load = || {
        redis.cmd(&["SAVE"]);
        redis.restart();
        assert_eq!(redis.info("loading").as_deref(), Some("1"));
    };
    let loaded =
        || eventually("it has read its data", PATIENCE, || redis.info("loading").as_deref() == Some("0"));
    in_three_tries(|| outage("LOADING", &redis, Memory::Lost, 1_500).run(load, loaded));
}

#[test]
fn a_network_that_delays_drops_cuts_and_garbles() {
    let _alone = alone();
    for (what, fault, noticed) in [
        ("delay of 200 ms", Fault::Delay(Duration::from_millis(200)), TOO_SLOW),
        ("lost requests", Fault::DropRequests, NOTICED),
        ("lost replies", Fault::DropReplies, NOTICED),
        ("replies cut short", Fault::CutRepliesAfter(7), NOTICED),
        ("garbage", Fault::GarbageReplies, NOTICED),
    ] {
        let lasts = noticed + Duration::from_millis(700);
        in_three_tries(|| {
            let redis = Redis::start();
            let proxy = FaultProxy::start(redis.addr());
            let url = format!("redis://{}", proxy.addr());
            Outage { what, url, lasts, noticed, memory: Memory::Kept, reach: Reach::All }
                .run(|| proxy.set(fault), || proxy.resume())
        });
    }
}

/// A server that forgets its scripts is told them again: nobody notices.
#[test]
fn a_redis_that_forgets_its_scripts() {
    let _alone = alone();
    let redis = Redis::start();
    let nodes = Node::pair(&redis.url(), PATIENT, POLICY_RULES);
    in_three_tries(|| {
        let load = Load::start(&nodes.each_ref(), 2);
        for _ in 0..20 {
            redis.cmd(&["SCRIPT", "FLUSH"]);
            pass(Duration::from_millis(50));
        }
        redis.cmd(&["SCRIPT", "FLUSH"]);
        assert_exact(&nodes.each_ref(), "SCRIPT FLUSH");
        let outcome = load.finish();
        let inexact = outcome.asked.iter().filter(|one| !one.answer.is_exact()).count();
        assert_eq!(inexact, 0, "of {} requests", outcome.asked.len());
        outcome.is_prompt("SCRIPT FLUSH")
    });
}

/// What a server forgets is gone: a user has its limit once more, and not more than that.
#[test]
fn a_redis_that_forgets_everything() {
    let _alone = alone();
    let redis = Redis::start();
    let nodes = Node::pair(&redis.url(), PATIENT, POLICY_RULES);
    let mut clients = [nodes[0].client(), nodes[1].client()];
    let mut take = |times: usize| {
        let user = [("policy", "exact"), ("user", "u")];
        (0..times).filter(|turn| check(&mut clients[turn % 2], &user, 1).allowed).count()
    };
    assert_eq!(take(50), 20);
    redis.cmd(&["FLUSHALL"]);
    let mut more = 0;
    eventually("the limit is back, and no longer remembered as spent", PATIENCE, || {
        more += take(2);
        more > 0
    });
    more += take(50);
    assert_eq!(more, 20);
}

#[test]
fn a_redis_that_closes_its_connections() {
    let _alone = alone();
    let redis = Redis::start();
    let nodes = Node::pair(&redis.url(), DEFAULT, POLICY_RULES);
    let kill_all = || drop(redis.client().cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    in_three_tries(|| {
        let load = Load::start(&nodes.each_ref(), 2);
        let began = load.at();
        for _ in 0..10 {
            pass(Duration::from_millis(100));
            kill_all();
        }
        let killed = load.at();
        pass(RECOVERED);
        assert_exact(&nodes.each_ref(), "CLIENT KILL");
        let outcome = load.finish();
        outcome.is_prompt("CLIENT KILL")?;
        outcome.is_exact_again("CLIENT KILL", killed)?;
        outcome.obeys("CLIENT KILL", began..killed + RECOVERED)
    });
}
