//! Answers that who asks the same a moment later shares: ten screens on one page cost the fleet one question, not ten.
//!
//! What is shared is what the fleet said, before any caller's view of it: masking is for each caller.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// For how long after it was asked an answer is shared at least. Pages ask every two seconds, and more seldom.
pub(crate) const SHARED_FOR: Duration = Duration::from_secs(2);
/// The most answers that are shared; what is asked beyond that is asked for one alone.
const MOST_SHARED: usize = 16;

/// Recent answers, and those under way, by what was asked.
pub(crate) struct SharedAnswers<K, V>(Mutex<Vec<Recent<K, V>>>);

struct Recent<K, V> {
    key: K,
    asked: Instant,
    /// The age up to which it is kept.
    kept_for: Duration,
    answer: Arc<OnceCell<V>>,
}

impl<K, V> Default for SharedAnswers<K, V> {
    fn default() -> Self {
        SharedAnswers(Mutex::default())
    }
}

impl<K: PartialEq, V: Clone> SharedAnswers<K, V> {
    /// The answer to `key`, as `ask` finds it unless it was asked less than `fresh` ago. If who asks leaves, the next one asks.
    pub(crate) async fn get(&self, key: K, fresh: Duration, ask: impl Future<Output = V>) -> V {
        match self.place(key, fresh) {
            Some(answer) => answer.get_or_init(|| ask).await.clone(),
            None => ask.await,
        }
    }

    fn place(&self, key: K, fresh: Duration) -> Option<Arc<OnceCell<V>>> {
        let mut recent = self.0.lock();
        let is_too_old = |one: &Recent<K, V>| one.key == key && one.asked.elapsed() >= fresh;
        recent.retain(|one| one.asked.elapsed() < one.kept_for && !is_too_old(one));
        if let Some(known) = recent.iter().find(|one| one.key == key) {
            return Some(known.answer.clone());
        }
        if recent.len() >= MOST_SHARED {
            return None;
        }
        let answer = Arc::default();
        recent.push(Recent { key, asked: Instant::now(), kept_for: fresh, answer: Arc::clone(&answer) });
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    #[derive(Default)]
    struct Asked {
        shared: SharedAnswers<u32, u32>,
        times: AtomicU32,
    }

    impl Asked {
        /// The number of the question that answered.
        async fn get(&self, key: u32) -> u32 {
            self.of(key, SHARED_FOR).await
        }

        async fn of(&self, key: u32, fresh: Duration) -> u32 {
            let ask = async {
                let number = self.times.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(500)).await;
                number
            };
            self.shared.get(key, fresh, ask).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ten_who_ask_the_same_within_two_seconds_cost_one_question() {
        let asked = Asked::default();
        let ten = (0..10_u64).map(|number| {
            let asked = &asked;
            async move {
                sleep(Duration::from_millis(190 * number)).await;
                asked.get(1).await
            }
        });
        assert_eq!(futures_util::future::join_all(ten).await, [0; 10]);
        advance(SHARED_FOR).await;
        assert_eq!(asked.get(1).await, 1, "later it is asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_an_older_answer_shares_it_for_longer_and_who_does_not_asks_again() {
        let asked = Asked::default();
        let ten = Duration::from_secs(10);
        assert_eq!(asked.of(1, ten).await, 0);
        advance(Duration::from_secs(8)).await;
        assert_eq!(asked.of(1, ten).await, 0, "shared for as long as it may be old");
        assert_eq!(asked.get(1).await, 1, "too old for others");
        assert_eq!(asked.of(1, ten).await, 1, "and the newest is for all");
    }

    #[tokio::test(start_paused = true)]
    async fn another_question_has_an_answer_of_its_own() {
        let asked = Asked::default();
        assert_eq!([asked.get(1).await, asked.get(2).await, asked.get(1).await], [0, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_while_asking_leaves_the_question_to_the_next() {
        let asked = Asked::default();
        let left = tokio::time::timeout(Duration::from_millis(100), asked.get(1)).await;
        assert!(left.is_err());
        assert_eq!(asked.get(1).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_beyond_the_bound_are_not_kept() {
        let asked = Asked::default();
        for key in 0..100 {
            let _ = tokio::time::timeout(Duration::from_micros(1), asked.get(key)).await;
        }
        assert_eq!(asked.shared.0.lock().len(), MOST_SHARED);
        assert_eq!([asked.get(99).await, asked.get(99).await], [100, 101], "each is asked for alone");
    }
}
