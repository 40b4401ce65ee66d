//! Clients that never log in, or fall silent.

use std::time::Duration;

use tidegate_access::SecretDigest;
use tidegate_server::resp::{RespSettings, Users};

use super::world::World;

const QUICK: Duration = Duration::from_millis(400);

#[test]
fn a_client_that_never_logs_in_is_let_go_whatever_it_says() {
    let users = Users::default().with("default", vec![SecretDigest::of(b"s3cret")]);
    let settings = RespSettings { users, login_timeout: QUICK, ..RespSettings::default() };
    let world = World::with_settings(settings);
    let (mut silent, mut talking, mut friend) = (world.raw(), world.raw(), world.raw());
    friend.send("AUTH s3cret\r\n").expect("+OK\r\n");
    talking.send("PING\r\n").expect("-NOAUTH Authentication required.\r\n");
    silent.expect_end("");
    talking.expect_end("");
    friend.send("PING\r\n").expect("+PONG\r\n");
}

#[test]
fn a_client_that_says_nothing_for_too_long_is_let_go() {
    let world = World::with_settings(RespSettings { idle_timeout: QUICK, ..RespSettings::default() });
    let mut idle = world.raw();
    idle.send("PING\r\n").expect("+PONG\r\n");
    idle.expect_end("");
}
