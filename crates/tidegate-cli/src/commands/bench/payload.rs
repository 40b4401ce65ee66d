//! The requests of a benchmark, encoded before it starts: sending one only copies bytes.
//!
//! All callers' names are equally long, so all requests are too, and the n-th one is found by arithmetic.

use bytes::{BufMut as _, Bytes};
use serde_json::json;

use super::plan::Plan;
use crate::args::{Protocol, Throttle};

/// Every request of a run, one per caller.
#[derive(Clone, Debug)]
pub(super) struct Payloads {
    all: Bytes,
    each: usize,
}

impl Payloads {
    pub(super) fn encode(plan: &Plan) -> Payloads {
        let width = (plan.keys - 1).to_string().len();
        let encode_one = |number: u32| {
            let caller = format!("u{number:0width$}");
            match plan.protocol {
                Protocol::Http => http_request(plan, &caller),
                Protocol::Grpc => grpc_message(plan, &caller),
                Protocol::Resp => resp_command(plan, &caller),
            }
        };
        let each = encode_one(0).len();
        let mut all = Vec::with_capacity(each * plan.keys as usize);
        for number in 0..plan.keys {
            all.extend_from_slice(&encode_one(number));
        }
        assert_eq!(all.len(), each * plan.keys as usize, "all requests are equally long");
        Payloads { all: all.into(), each }
    }

    /// The request of a random caller.
    pub(super) fn draw(&self, dice: &mut Dice) -> Bytes {
        let callers = (self.all.len() / self.each) as u64;
        let caller = (dice.roll() % callers) as usize;
        self.all.slice(caller * self.each..(caller + 1) * self.each)
    }
}

/// A small, fast, seeded random number generator (xorshift): one per lane, so runs are repeatable.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn for_lane(lane: u64) -> Dice {
        // An odd multiplier spreads adjacent lanes far apart; a zero state would stay zero.
        Dice((lane + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn http_request(plan: &Plan, caller: &str) -> Vec<u8> {
    let attributes = json!({ &plan.attribute: caller });
    let body = json!({ "domain": plan.domain, "attributes": attributes, "cost": plan.cost }).to_string();
    let path = plan.endpoint.path("/v1/check");
    let host = plan.endpoint.authority();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// `CL.THROTTLE caller max_burst count period cost`.
fn resp_command(plan: &Plan, caller: &str) -> Vec<u8> {
    let Throttle { max_burst, count, period } = plan.throttle;
    let numbers = [max_burst, count, period, u64::from(plan.cost)].map(|number| number.to_string());
    let words = ["CL.THROTTLE", caller].into_iter().chain(numbers.iter().map(String::as_str));
    let mut command = b"*6\r\n".to_vec();
    for word in words {
        command.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    command
}

/// A gRPC frame around a `RateLimitRequest` with one descriptor of one entry.
fn grpc_message(plan: &Plan, caller: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, plan.attribute.as_bytes());
    put_bytes(&mut entry, 2, caller.as_bytes());
    let mut descriptor = Vec::new();
    put_bytes(&mut descriptor, 1, &entry);
    if plan.cost != 1 {
        // Here and not in the request, where 0 would mean 1. An absent value inside the wrapper means 0.
        let mut hits = Vec::new();
        if plan.cost > 0 {
            put_varint(&mut hits, 1 << 3);
            put_varint(&mut hits, u64::from(plan.cost));
        }
        put_bytes(&mut descriptor, 3, &hits);
    }
    let mut message = Vec::new();
    put_bytes(&mut message, 1, plan.domain.as_bytes());
    put_bytes(&mut message, 2, &descriptor);

    let mut frame = Vec::with_capacity(5 + message.len());
    frame.put_u8(0); // not compressed
    frame.put_u32(u32::try_from(message.len()).expect("a command line is shorter than 4 GiB"));
    frame.extend_from_slice(&message);
    frame
}

/// A length-delimited protobuf field.
fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
