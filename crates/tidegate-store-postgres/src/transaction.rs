//! One transaction: lock rows and read them, then write some of them and commit.
//!
//! Each half is one round trip: `BEGIN` rides with the lock, `COMMIT` with the write. Nothing is applied before the commit is sent,
//! so whatever fails earlier was certainly not applied.

use std::time::Duration;

use futures_util::future::join;
use tidegate_core::Timestamp;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::failure::Failure;
use crate::name::Name;
use crate::pool::{Lent, Pool};

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
const LOCK: &str = "SELECT now_us, known, states FROM tidegate.lock_rows_1($1, $2, $3)";
const READ: &str = "SELECT tidegate.now_us(), coalesce(array_agg(id), '{}'), coalesce(array_agg(state), '{}') \
                    FROM tidegate.cells WHERE id = ANY ($1)";
const WRITE: &str = "SELECT tidegate.write_rows_1($1, $2, $3, $4)";
/// How long a node may hold rows between its two round trips. Callers of other nodes that need one of the rows are meanwhile
/// answered by their rules' failure policy.
const HELD: Duration = Duration::from_millis(500);
/// A server that locks a call's rows this long after its deadline does not decide it: by then no caller waits.
const BEGINS_WITHIN: Duration = Duration::from_millis(500);
/// A transaction starts again because others created its rows meanwhile, or its connection had died unnoticed: the first times at
/// once, then after a random pause of at most this.
const STARTS_AT_ONCE: u32 = 3;
const LONGEST_PAUSE_US: u64 = 5_000;

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    span: Duration,
    at: Instant,
    /// How long after it an answer is still accepted.
    late: Duration,
}

impl Deadline {
    pub(crate) fn from_now(span: Duration, late: Duration) -> Self {
        Deadline { span, at: Instant::now() + span, late }
    }

    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    fn last(&self) -> Instant {
        self.at + self.late
    }
}

/// Rows that only this call may change until it ends.
pub(crate) struct Locked {
    lent: Lent,
    began: Instant,
    deadline: Deadline,
    /// When they were locked, by the server's clock.
    pub(crate) now: Timestamp,
    rows: Vec<Row>,
}

struct Row {
    name: Name,
    state: Vec<u8>,
    /// Whether the row was there. One that this call created disappears unless it is written.
    exists: bool,
}

/// New content of a row; no state deletes it.
pub(crate) struct Content {
    pub(crate) state: Vec<u8>,
    pub(crate) ends: Timestamp,
}

impl Pool {
    /// Locks the rows of `names`, which ascend.
    pub(crate) async fn lock(&self, names: &[Name], deadline: Deadline) -> Result<Locked, Failure> {
        for start in 0_u32.. {
            let lent = self.take(deadline.at, deadline.span).await?;
            match timeout_at(deadline.last(), begin(lent, names, deadline)).await {
                Ok(Ok(Begun::Locked(locked))) => {
                    if Instant::now() > deadline.at + BEGINS_WITHIN {
                        locked.lent.roll_back();
                        return Err(Failure::TooLate(deadline.span));
                    }
                    return Ok(locked);
                }
                Ok(Ok(Begun::Again)) => {}
                Ok(Err(failure)) => return Err(failure),
                Err(_) => return Err(Failure::TooLate(deadline.span)),
            }
            if deadline.left().is_zero() {
                break;
            }
            if start >= STARTS_AT_ONCE {
                let pause = getrandom::u64().expect("the system has random bytes") % LONGEST_PAUSE_US;
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        }
        Err(Failure::TooLate(deadline.span))
    }
}

impl Pool {
    /// The server's time and the states of these rows, without a lock; none for a row that is not there.
    pub(crate) async fn read(
        &self,
        names: &[Name],
        span: Duration,
    ) -> Result<(Timestamp, Vec<(Name, Vec<u8>)>), Failure> {
        let until = Instant::now() + span;
        let lent = self.take(until, span).await?;
        let parameters: [Parameter<'_>; 1] = [(&names, Type::UUID_ARRAY)];
        let answer = timeout_at(until, lent.client().query_typed_one(READ, &parameters)).await;
        let failed = |error| Failure::before_commit(error, span);
        let found = answer.map_err(|_| Failure::TooLate(span))?.map_err(failed)?;
        let now: i64 = found.try_get(0).map_err(failed)?;
        let known: Vec<Name> = found.try_get(1).map_err(failed)?;
        let states: Vec<Vec<u8>> = found.try_get(2).map_err(failed)?;
        lent.give_back();
        Ok((Timestamp::from_micros(now.cast_unsigned()), known.into_iter().zip(states).collect()))
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are locked, and a box would cost each an allocation"
)]
enum Begun {
    Locked(Locked),
    Again,
}

async fn begin(lent: Lent, names: &[Name], deadline: Deadline) -> Result<Begun, Failure> {
    let millis = |span: Duration| i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1);
    let (wait, held) = (millis(deadline.left()), millis(HELD));
    let parameters: [Parameter<'_>; 3] =
        [(&names, Type::UUID_ARRAY), (&wait, Type::INT4), (&held, Type::INT4)];
    let began = Instant::now();
    // Both are on their way before either is answered, the first one first.
    let begin = lent.client().batch_execute(BEGIN);
    let (begun, locked) = join(begin, lent.client().query_typed_one(LOCK, &parameters)).await;
    let found = match begun.and(locked) {
        Ok(row) => row,
        // It died while it was idle. Nothing was applied, and a new one may be fine.
        Err(_) if lent.is_used && lent.client().is_closed() => return Ok(Begun::Again),
        Err(error) => {
            let failure = Failure::before_commit(error, deadline.span);
            if !lent.client().is_closed() && matches!(failure, Failure::TooLate(_)) {
                lent.roll_back();
            }
            return Err(failure);
        }
    };
    let unread = |error: tokio_postgres::Error| Failure::before_commit(error, deadline.span);
    let now: i64 = found.try_get(0).map_err(unread)?;
    let existing: Vec<Name> = found.try_get(1).map_err(unread)?;
    let Some(states) = found.try_get::<_, Option<Vec<Vec<u8>>>>(2).map_err(unread)? else {
        if lent.client().batch_execute("ROLLBACK").await.is_ok() {
            lent.give_back();
        }
        return Ok(Begun::Again);
    };
    let mut known = existing.into_iter().zip(states).peekable();
    let rows = names.iter().map(|name| {
        let state = known.next_if(|(known, _)| known == name).map(|(_, state)| state);
        Row { name: *name, exists: state.is_some(), state: state.unwrap_or_default() }
    });
    let rows = rows.collect();
    Ok(Begun::Locked(Locked {
        lent,
        began,
        deadline,
        now: Timestamp::from_micros(now.cast_unsigned()),
        rows,
    }))
}

impl Locked {
    /// The state of each row, in the order of the names; empty where there was no row.
    pub(crate) fn states(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.iter().map(|row| &*row.state)
    }

    /// Writes what differs, and commits. `contents` are in the order of the names; none leaves a row as it is.
    pub(crate) async fn commit(self, contents: Vec<Option<Content>>) -> Result<(), Failure> {
        let Locked { lent, began, deadline, rows, .. } = self;
        let (mut names, mut states, mut ends, mut gone) = (vec![], vec![], vec![], vec![]);
        let mut is_changed = false;
        for (row, content) in rows.into_iter().zip(contents) {
            match content.filter(|content| content.state != row.state) {
                Some(Content { state, ends: end }) if !state.is_empty() => {
                    is_changed = true;
                    names.push(row.name);
                    states.push(state);
                    ends.push(i64::try_from(end.as_micros()).unwrap_or(i64::MAX));
                }
                Some(_) => {
                    is_changed = true;
                    gone.push(row.name);
                }
                None if !row.exists => gone.push(row.name),
                None => {}
            }
        }
        if !is_changed {
            lent.roll_back();
            return Ok(());
        }
        let parameters: [Parameter<'_>; 4] = [
            (&names, Type::UUID_ARRAY),
            (&states, Type::BYTEA_ARRAY),
            (&ends, Type::INT8_ARRAY),
            (&gone, Type::UUID_ARRAY),
        ];
        if began.elapsed() > HELD / 2 {
            // So that what the server said meanwhile is read before anything is sent.
            tokio::task::yield_now().await;
        }
        if lent.client().is_closed() {
            return Err(Failure::Interrupted);
        }
        let write = lent.client().execute_typed(WRITE, &parameters);
        let both = join(write, lent.client().batch_execute("COMMIT"));
        let Ok((written, committed)) = timeout_at(deadline.last(), both).await else {
            return Err(Failure::TimedOut(deadline.span + deadline.late));
        };
        match (written, committed) {
            (Ok(_), Ok(())) => {
                lent.give_back();
                Ok(())
            }
            // Even if it took the write: the commit came too late.
            (Err(error), _) | (_, Err(error))
                if error.code() == Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
                    || lent.was_interrupted() =>
            {
                Err(Failure::Interrupted)
            }
            // The server refused the write: the commit that followed ended the transaction without it.
            (Err(error), _) if error.as_db_error().is_some() => {
                Err(Failure::before_commit(error, deadline.span))
            }
            (Err(error), _) | (_, Err(error)) => Err(Failure::Lost(error.into())),
        }
    }
}
