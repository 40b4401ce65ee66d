//! A store that always fails, for tests.

use tidegate_core::{Limit, Micros};

use crate::contract::{BatchOutcomes, CellCharge, CellKey, LeaseRef, Refund, Reply, Request, Stamped, Store};
use crate::error::StoreError;
use crate::record::Record;

/// A store that fails every call, each time with a new error from this function.
#[derive(Clone, Copy, Debug)]
pub struct Broken(pub fn() -> StoreError);

impl Broken {
    /// An unreachable store.
    pub const AWAY: Broken =
        Broken(|| StoreError::NotApplied { endpoint: "nowhere".to_owned(), source: "unplugged".into() });

    fn fail<T>(&self) -> Reply<'static, T> {
        Reply::Now(Err(self.0()))
    }
}

impl Store for Broken {
    fn decide<'a>(&'a self, _: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        self.fail()
    }

    fn refund<'a>(&'a self, _: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        self.fail()
    }

    fn charge<'a>(&'a self, _: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        self.fail()
    }

    fn reset<'a>(&'a self, _: CellKey<'a>, _: &'a Limit) -> Reply<'a, Stamped<()>> {
        self.fail()
    }

    fn renew<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.fail()
    }

    fn release<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.fail()
    }

    fn put_record<'a>(&'a self, _: Record<'a>, _: Micros) -> Reply<'a, Option<Vec<u8>>> {
        self.fail()
    }

    fn replace_record<'a>(&'a self, _: Record<'a>, _: Option<&'a [u8]>, _: Micros) -> Reply<'a, bool> {
        self.fail()
    }

    fn heartbeat(&self, _: u64, _: Micros) -> Reply<'_, usize> {
        self.fail()
    }
}
