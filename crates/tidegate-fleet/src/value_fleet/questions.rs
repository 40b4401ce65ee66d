//! Questions to all nodes, and their answers.

use tidegate_core::{Micros, Timestamp};
use tidegate_store::StoreError;

use super::bytes::{Reader, append, append_number};
use super::{MOST_TRIES, contended, forget_pieces, pieces, put_pieces, value};
use crate::store::{
    Answered, LONGEST_ANSWER, LONGEST_QUESTION, MOST_QUESTIONS, StoredAnswer, StoredQuestion,
};
use crate::values::ValueStore;

pub(super) const OPEN: &[u8] = b"questions";
/// How long a question and its answers are kept.
const KEPT: Micros = Micros::from_secs(10);

struct Open {
    until: Timestamp,
    question: StoredQuestion,
}

/// The open ones. One asked by a clock that was ahead is open for no longer than one asked now.
fn read(bytes: &[u8], now: Timestamp) -> Vec<Open> {
    let (mut reader, mut all) = (Reader(bytes), Vec::new());
    while let (Some(id), Some(until), Some(text)) = (reader.number(), reader.number(), reader.part()) {
        let until = Timestamp::from_micros(until).min(now + KEPT);
        if now < until && all.len() < MOST_QUESTIONS {
            all.push(Open { until, question: StoredQuestion { id, text: text.to_vec() } });
        }
    }
    all
}

fn write(open: &[Open]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Open { until, question } in open {
        append_number(&mut bytes, question.id);
        append_number(&mut bytes, until.as_micros());
        append(&mut bytes, &question.text);
    }
    bytes
}

pub(super) fn open(bytes: &[u8], now: Timestamp) -> Vec<StoredQuestion> {
    read(bytes, now).into_iter().map(|open| open.question).collect()
}

pub(super) async fn put(store: &dyn ValueStore, question: &StoredQuestion) -> Result<bool, StoreError> {
    if question.text.len() > LONGEST_QUESTION {
        return Ok(false);
    }
    for _ in 0..MOST_TRIES {
        let (now, known) = value(store, OPEN).await?;
        let mut all = read(known.as_deref().unwrap_or_default(), now);
        if all.len() >= MOST_QUESTIONS {
            return Ok(false);
        }
        all.push(Open { until: now + KEPT, question: question.clone() });
        if store.swap(OPEN, known.as_deref(), &write(&all), KEPT).await? {
            return Ok(true);
        }
    }
    Err(contended())
}

/// The answer's pieces come first: whoever finds the sender's name can read them.
pub(super) async fn answer(
    store: &dyn ValueStore,
    id: u64,
    from: &[u8],
    answer: &[u8],
) -> Result<Answered, StoreError> {
    if answer.len() > LONGEST_ANSWER {
        return Ok(Answered::TooLong);
    }
    let (now, known) = value(store, OPEN).await?;
    if !open(&known.unwrap_or_default(), now).iter().any(|question| question.id == id) {
        return Ok(Answered::NotOpen);
    }
    put_pieces(store, &answer_name(id, from), answer, KEPT).await?;
    let list = senders_name(id);
    for _ in 0..MOST_TRIES {
        let known = value(store, &list).await?.1;
        let mut senders = read_senders(known.as_deref().unwrap_or_default());
        senders.retain(|(sender, _)| sender != from);
        senders.push((from.to_vec(), answer.len()));
        if store.swap(&list, known.as_deref(), &write_senders(&senders), KEPT).await? {
            return Ok(Answered::Kept);
        }
    }
    Err(contended())
}

pub(super) async fn answered(store: &dyn ValueStore, id: u64) -> Result<Vec<Vec<u8>>, StoreError> {
    let known = value(store, &senders_name(id)).await?.1.unwrap_or_default();
    Ok(read_senders(&known).into_iter().map(|(sender, _)| sender).collect())
}

pub(super) async fn answers(store: &dyn ValueStore, id: u64) -> Result<Vec<StoredAnswer>, StoreError> {
    let known = value(store, &senders_name(id)).await?.1.unwrap_or_default();
    let mut all = Vec::new();
    for (sender, length) in read_senders(&known) {
        let answer = pieces(store, &answer_name(id, &sender), length).await;
        let gone =
            || StoreError::NotApplied { endpoint: "store".to_owned(), source: "part of it is gone".into() };
        all.push((sender, answer.and_then(|answer| answer.ok_or_else(gone))));
    }
    Ok(all)
}

pub(super) async fn forget(store: &dyn ValueStore, id: u64) -> Result<(), StoreError> {
    let list = senders_name(id);
    for _ in 0..MOST_TRIES {
        let (now, known) = value(store, OPEN).await?;
        let mut all = read(known.as_deref().unwrap_or_default(), now);
        all.retain(|open| open.question.id != id);
        if known.is_none() || store.swap(OPEN, known.as_deref(), &write(&all), KEPT).await? {
            let known = value(store, &list).await?.1.unwrap_or_default();
            for (sender, length) in read_senders(&known) {
                forget_pieces(store, &answer_name(id, &sender), length).await?;
            }
            return store.put(&list, None, Micros::ONE).await;
        }
    }
    Err(contended())
}

fn read_senders(bytes: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let (mut reader, mut senders) = (Reader(bytes), Vec::new());
    while let (Some(sender), Some(length)) = (reader.part(), reader.number()) {
        senders.push((sender.to_vec(), (length as usize).min(LONGEST_ANSWER)));
    }
    senders
}

fn write_senders(senders: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sender, length) in senders {
        append(&mut bytes, sender);
        append_number(&mut bytes, *length as u64);
    }
    bytes
}

fn senders_name(id: u64) -> Vec<u8> {
    format!("answers{id:016x}").into_bytes()
}

fn answer_name(id: u64, from: &[u8]) -> Vec<u8> {
    [format!("answer{id:016x}by").as_bytes(), from].concat()
}
