//! Questions to all nodes and their answers: data that only one node has.
//!
//! A question arrives with the heartbeat that every node sends anyway, so it costs nothing while there are none. Each has
//! its own key for answers. Both expire within seconds, whichever node fails.

use redis::{Cmd, Value};
use tidegate_fleet::{
    Answered, LONGEST_ANSWER, LONGEST_QUESTION, MOST_QUESTIONS, StoredAnswer, StoredQuestion,
};
use tidegate_store::StoreError;

use crate::script;
use crate::store::{Inner, MEMBERS, nonsense};

/// How long a question and its answers are kept.
const KEPT_MS: u64 = 10_000;

impl Inner {
    /// Asks all nodes; false if too many questions are open, or this one is too long.
    pub(crate) async fn put_question(&self, question: &StoredQuestion) -> Result<bool, StoreError> {
        if question.text.len() > LONGEST_QUESTION {
            return Ok(false);
        }
        let script = script::ask();
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1).arg(self.questions_key());
        command.arg(&question.id.to_le_bytes()[..]).arg(&question.text).arg(MOST_QUESTIONS).arg(KEPT_MS);
        match self.ask(&command, Some(script)).await? {
            Value::Int(taken) => Ok(taken == 1),
            _ => Err(nonsense("a number")),
        }
    }

    /// Answers a question as `from`.
    pub(crate) async fn answer_question(
        &self,
        id: u64,
        from: &[u8],
        answer: &[u8],
    ) -> Result<Answered, StoreError> {
        if answer.len() > LONGEST_ANSWER {
            return Ok(Answered::TooLong);
        }
        let script = script::answer();
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(2);
        command.arg(self.questions_key()).arg(self.answers_key(id));
        command.arg(&id.to_le_bytes()[..]).arg(from).arg(answer).arg(KEPT_MS);
        match self.ask(&command, Some(script)).await? {
            Value::Int(1) => Ok(Answered::Kept),
            Value::Int(_) => Ok(Answered::NotOpen),
            _ => Err(nonsense("a number")),
        }
    }

    /// Who has answered so far.
    pub(crate) async fn answered(&self, id: u64) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut command = Cmd::new();
        command.arg("HKEYS").arg(self.answers_key(id));
        match self.ask(&command, None).await? {
            Value::Array(senders) => Ok(senders.iter().map(bytes).collect()),
            _ => Err(nonsense("a list")),
        }
    }

    /// The answers so far: sender and content, or why it cannot be read.
    ///
    /// Read one by one: those of many nodes are longer together than a reply in time may be.
    pub(crate) async fn answers(&self, id: u64) -> Result<Vec<StoredAnswer>, StoreError> {
        let key = self.answers_key(id);
        let mut answers = Vec::new();
        for sender in self.answered(id).await? {
            let mut command = Cmd::new();
            command.arg("HGET").arg(&key).arg(&sender);
            let answer = self.ask(&command, None).await;
            answers.push((sender, answer.map(|answer| bytes(&answer))));
        }
        Ok(answers)
    }

    /// Removes a question and its answers.
    pub(crate) async fn forget_question(&self, id: u64) -> Result<(), StoreError> {
        let mut question = Cmd::new();
        question.arg("HDEL").arg(self.questions_key()).arg(&id.to_le_bytes()[..]);
        self.ask(&question, None).await?;
        let mut answers = Cmd::new();
        answers.arg("DEL").arg(self.answers_key(id));
        self.ask(&answers, None).await.map(drop)
    }
}

impl Inner {
    pub(crate) fn questions_key(&self) -> Vec<u8> {
        self.keys.fleet_key(MEMBERS, b"questions")
    }

    fn answers_key(&self, id: u64) -> Vec<u8> {
        self.keys.fleet_key(MEMBERS, format!("answers{id:016x}").as_bytes())
    }

    /// Passes on the questions of a heartbeat.
    pub(crate) fn hear_questions(&self, told: &Value) {
        let read = |(id, text): (Vec<u8>, Vec<u8>)| {
            Some(StoredQuestion { id: u64::from_le_bytes(id.as_slice().try_into().ok()?), text })
        };
        self.fleet.hear_questions(pairs(told).into_iter().filter_map(read).collect());
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        _ => Vec::new(),
    }
}

fn pairs(told: &Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    match told {
        Value::Array(parts) => parts.chunks_exact(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect(),
        Value::Map(pairs) => pairs.iter().map(|(one, other)| (bytes(one), bytes(other))).collect(),
        _ => Vec::new(),
    }
}
