//! Redis as the store that carries what nodes tell each other.

use tidegate_fleet::{
    Answered, FleetHistory, FleetReply, FleetStore, LimiterNote, Over, Published, PublishedRevision,
    Publishing, Row, StoredAnswer, StoredQuestion, WithHeartbeat,
};

use crate::store::RedisStore;

impl FleetStore for RedisStore {
    fn with_heartbeat(&self) -> &WithHeartbeat {
        &self.inner.fleet
    }

    fn notes(&self) -> FleetReply<'_, Vec<LimiterNote>> {
        Box::pin(self.inner.notes())
    }

    fn counted(&self, history: FleetHistory, number: u64) -> FleetReply<'_, Vec<Row>> {
        Box::pin(self.inner.counted(history, number))
    }

    fn publish<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        published: &'a Published,
        over: Over<'a>,
    ) -> FleetReply<'a, Publishing> {
        Box::pin(self.inner.publish(revision, published, over))
    }

    fn publish_changes<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        known: &'a [u8],
        changes: (&'a [u8], u32),
    ) -> FleetReply<'a, bool> {
        Box::pin(self.inner.publish_changes(revision, known, changes))
    }

    fn keep_published(&self) -> FleetReply<'_, ()> {
        Box::pin(self.inner.keep_published())
    }

    fn published(&self) -> FleetReply<'_, Option<Published>> {
        Box::pin(self.inner.published())
    }

    fn published_changes(&self) -> FleetReply<'_, (Vec<u8>, u32)> {
        Box::pin(self.inner.published_changes())
    }

    fn put_question<'a>(&'a self, question: &'a StoredQuestion) -> FleetReply<'a, bool> {
        Box::pin(self.inner.put_question(question))
    }

    fn answer_question<'a>(&'a self, id: u64, from: &'a [u8], answer: &'a [u8]) -> FleetReply<'a, Answered> {
        Box::pin(self.inner.answer_question(id, from, answer))
    }

    fn answered(&self, id: u64) -> FleetReply<'_, Vec<Vec<u8>>> {
        Box::pin(self.inner.answered(id))
    }

    fn answers(&self, id: u64) -> FleetReply<'_, Vec<StoredAnswer>> {
        Box::pin(self.inner.answers(id))
    }

    fn forget_question(&self, id: u64) -> FleetReply<'_, ()> {
        Box::pin(self.inner.forget_question(id))
    }
}
