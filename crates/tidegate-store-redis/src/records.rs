//! Records: strings with a TTL, written and replaced by one small script.

use redis::{Cmd, Value};
use tidegate_core::Micros;
use tidegate_store::{Record, StoreError};

use crate::client::Call;
use crate::link::Deadline;
use crate::observer::Operation;
use crate::script;
use crate::store::{Inner, nonsense};

impl Inner {
    pub(crate) async fn put_record(
        &self,
        record: Record<'_>,
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.record(record.name, &[record.value, millis(ttl).as_bytes()]).await? {
            Value::Nil => Ok(None),
            Value::BulkString(known) => Ok(Some(known)),
            _ => Err(nonsense("a record")),
        }
    }

    pub(crate) async fn replace_record(
        &self,
        record: Record<'_>,
        to: Option<&[u8]>,
        ttl: Micros,
    ) -> Result<bool, StoreError> {
        let (value, ttl) = to.map_or((&b""[..], "0".to_owned()), |to| (to, millis(ttl)));
        match self.record(record.name, &[value, ttl.as_bytes(), record.value]).await? {
            Value::Int(replaced) => Ok(replaced == 1),
            _ => Err(nonsense("whether it was replaced")),
        }
    }

    async fn record(&self, name: &[u8], arguments: &[&[u8]]) -> Result<Value, StoreError> {
        let script = script::record();
        let mut key = Vec::new();
        self.keys.append_record(&mut key, name);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1).arg(key).arg(arguments);
        let (operation, source) = (Operation::Record, Some(&*script.source));
        let call = Call { operation, command: &command, source, items: 1 };
        self.client.run(self.client.partition_of(name), call, Deadline::from_now(self.timeout)).await
    }
}

/// The TTL in whole milliseconds, rounded up, at least one.
fn millis(ttl: Micros) -> String {
    ttl.as_millis_ceil().max(1).to_string()
}
