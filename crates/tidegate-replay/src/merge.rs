//! Merges lines of decision logs in time order: of one log written by several threads, or of several nodes.
//!
//! A node writes a line when it has the answer, so lines are out of order by as long as answers take. Some lines of each log
//! are read ahead, and the earliest one comes first.
//!
//! The time of a line is the store's, if the line has it: then all nodes use one clock. Other lines have their node's time,
//! corrected by the offset to the store's clock as estimated from earlier lines.
//!
//! With very many logs, each is opened only when its earliest line is next, and closed after its last. To find out when, its
//! first lines are read once before; the order is the same as if all were open from the start.
//!
//! A line more than a day away from the previous one is either wrong, or the log has a gap there. The next line of the same
//! log shows which: a wrong one keeps its position, and the replay detects it by its neighbours.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use tidegate_core::{Micros, Timestamp};

use crate::parse::{LineTime, Rank, rank_of, time_of};
use crate::reader::{Line, Reader, Scan};

/// Lines read ahead per log: more than are written while the slowest request waits for its answer.
const AHEAD: usize = 512;
/// Lines compared one by one when inserting another, before a binary search.
const NEAR: usize = 32;
/// The weight of the previous estimate of the clock offset: one line changes it by one part in this many.
const STEADY: i64 = 8;
/// A step between two lines, forward or back, that another line must confirm.
pub(crate) const LEAP: Micros = Micros::from_secs(86_400);

/// Opens a log at its beginning; may be called several times.
pub type OpenLog<R> = Box<dyn FnMut() -> io::Result<Reader<R>> + Send>;

/// A log to merge.
pub enum LogSource<R> {
    /// Open from the start. A line that was already read of it comes back as its first line.
    Open(Reader<R>, Option<Vec<u8>>),
    /// Opened twice: for its first lines, and when they are next.
    OnDemand(OpenLog<R>),
}

/// Merges logs in time order.
#[derive(Debug)]
pub struct MergeByTime<R> {
    logs: Vec<LogState<R>>,
    /// The position of each open log's next line: earliest first, ties by the order of logs.
    order: BinaryHeap<Reverse<(u64, Rank, usize)>>,
    /// The log of the last line; `None` before the first.
    last: Option<usize>,
    /// The log that was last read from.
    reading: usize,
    /// Bytes of closed logs.
    closed_bytes: u64,
}

enum LogState<R> {
    Open(Box<Log<R>>),
    Waiting(OpenLog<R>),
    Ended,
}

#[derive(Debug)]
struct Log<R> {
    reader: Reader<R>,
    /// In output order, which for almost all lines is also the order in the log.
    ahead: VecDeque<ReadAhead>,
    /// A line with a time far from the previous one's, until the next line shows whether it is right.
    leaped: Option<(u64, ReadAhead)>,
    /// Texts copied out of the reader's buffer, this time and the time before.
    kept: Vec<u8>,
    kept_before: Vec<u8>,
    /// The number of the last line read, and the time of the last line with a plausible one.
    number: u64,
    time: u64,
    /// The estimated offset of the store's clock to this node's.
    ahead_us: Option<i64>,
    at_end: bool,
}

/// A line read ahead. Lines with equal position and rank keep their order.
#[derive(Debug)]
struct ReadAhead {
    place: u64,
    /// The correction that was added to the node's time.
    ahead_us: i64,
    number: u64,
    text: Text,
}

/// A line of one of several logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergedLine<'a> {
    /// Its number in its log.
    pub number: u64,
    /// Its text.
    pub line: Line<'a>,
    /// The estimated offset of the store's clock to the clock of the line.
    pub ahead_us: i64,
}

/// Where the text of a line is stored.
#[derive(Clone, Debug)]
enum Text {
    InBuffer(Range<usize>),
    Kept(Range<usize>),
    TooLong,
}

impl MergedLine<'_> {
    /// Converts a time by the line's clock to the store's clock.
    pub(crate) fn by_the_store(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add_signed(self.ahead_us))
    }
}

impl<R: Read> MergeByTime<R> {
    /// Merges these logs. A line that was already read of one comes back as its first line.
    #[must_use]
    pub fn new(logs: impl IntoIterator<Item = (Reader<R>, Option<Vec<u8>>)>) -> Self {
        MergeByTime::of(logs.into_iter().map(|(reader, first)| LogSource::Open(reader, first)))
    }

    /// Merges these logs.
    #[must_use]
    pub fn of(logs: impl IntoIterator<Item = LogSource<R>>) -> Self {
        let state = |log| match log {
            LogSource::Open(reader, first) => LogState::Open(Box::new(Log::new(reader, first))),
            LogSource::OnDemand(open) => LogState::Waiting(open),
        };
        MergeByTime {
            logs: logs.into_iter().map(state).collect(),
            order: BinaryHeap::new(),
            last: None,
            reading: 0,
            closed_bytes: 0,
        }
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let open = self.logs.iter().map(|log| match log {
            LogState::Open(log) => log.reader.bytes(),
            LogState::Waiting(_) | LogState::Ended => 0,
        });
        self.closed_bytes + open.sum::<u64>()
    }

    /// The index of the log last read from: the one that an error is about.
    #[must_use]
    pub fn reading(&self) -> usize {
        self.reading
    }

    /// The next line; `None` at the end of all logs.
    ///
    /// # Errors
    /// A log cannot be opened or read: [`MergeByTime::reading`] says which.
    pub fn next_line(&mut self) -> io::Result<Option<MergedLine<'_>>> {
        match self.last.take() {
            Some(last) => self.go_on(last)?,
            None => (0..self.logs.len()).try_for_each(|place| self.go_on(place))?,
        }
        while let Some(Reverse((_, _, place))) = self.order.pop() {
            self.open(place)?;
            let LogState::Open(log) = &mut self.logs[place] else { continue };
            // A log that was opened again may have been truncated meanwhile.
            let Some(line) = log.ahead.pop_front() else { continue };
            self.last = Some(place);
            let LogState::Open(log) = &self.logs[place] else { return Ok(None) };
            let ReadAhead { number, ahead_us, text, .. } = line;
            let line = log.text(text).map_or(Line::TooLong, Line::Text);
            return Ok(Some(MergedLine { number, line, ahead_us }));
        }
        Ok(None)
    }

    /// Queues a log by its next line, or closes it if there is none.
    fn go_on(&mut self, place: usize) -> io::Result<()> {
        self.reading = place;
        let is_alone = self.logs.len() == 1;
        let next = match &mut self.logs[place] {
            LogState::Open(log) => log.next_place(is_alone)?,
            LogState::Waiting(open) => Log::new(open()?, None).next_place(is_alone)?,
            LogState::Ended => None,
        };
        match next {
            Some((next, rank)) => self.order.push(Reverse((next, rank, place))),
            None => {
                let ended = std::mem::replace(&mut self.logs[place], LogState::Ended);
                if let LogState::Open(log) = ended {
                    self.closed_bytes += log.reader.bytes();
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, place: usize) -> io::Result<()> {
        let LogState::Waiting(open) = &mut self.logs[place] else { return Ok(()) };
        self.reading = place;
        let mut log = Log::new(open()?, None);
        log.read_ahead()?;
        self.logs[place] = LogState::Open(Box::new(log));
        Ok(())
    }
}

impl<R: Read> Log<R> {
    fn new(reader: Reader<R>, first: Option<Vec<u8>>) -> Self {
        let mut log = Log {
            reader,
            ahead: VecDeque::new(),
            leaped: None,
            kept: Vec::new(),
            kept_before: Vec::new(),
            number: 0,
            time: 0,
            ahead_us: None,
            at_end: false,
        };
        if let Some(first) = first {
            log.kept = first;
            log.put(Text::Kept(0..log.kept.len()));
        }
        log
    }

    /// The position of its next line; `None` at its end. A single log does not need ranks.
    fn next_place(&mut self, is_alone: bool) -> io::Result<Option<(u64, Rank)>> {
        self.read_ahead()?;
        let place = |line: &ReadAhead| (line.place, if is_alone { Rank::Unknown } else { self.rank(line) });
        Ok(self.ahead.front().map(place))
    }

    fn read_ahead(&mut self) -> io::Result<()> {
        while self.ahead.len() < AHEAD && !self.at_end {
            match self.reader.scan() {
                Scan::Line(line) => self.put(Text::InBuffer(line)),
                Scan::TooLong => self.put(Text::TooLong),
                Scan::NeedsMore => {
                    self.keep_texts();
                    self.reader.fill()?;
                }
                Scan::AtEnd => {
                    self.at_end = true;
                    if let Some((time, leaped)) = self.leaped.take() {
                        // A log may end after a gap. It does not end with its first days.
                        self.insert(ReadAhead { place: time.max(self.time), ..leaped });
                    }
                }
            }
        }
        Ok(())
    }

    fn text(&self, text: Text) -> Option<&[u8]> {
        match text {
            Text::InBuffer(line) => Some(self.reader.text(line)),
            Text::Kept(line) => Some(&self.kept[line]),
            Text::TooLong => None,
        }
    }

    /// Copies the texts of pending lines, because the reader's buffer is about to be refilled.
    fn keep_texts(&mut self) {
        std::mem::swap(&mut self.kept, &mut self.kept_before);
        self.kept.clear();
        for line in self.ahead.iter_mut().chain(self.leaped.iter_mut().map(|(_, line)| line)) {
            let text = match &line.text {
                Text::InBuffer(text) => self.reader.text(text.clone()),
                Text::Kept(text) => &self.kept_before[text.clone()],
                Text::TooLong => continue,
            };
            let start = self.kept.len();
            self.kept.extend_from_slice(text);
            line.text = Text::Kept(start..self.kept.len());
        }
    }

    fn put(&mut self, text: Text) {
        self.number += 1;
        let time = self.text(text.clone()).and_then(time_of).map(|time| self.by_the_store(time));
        let ahead_us = self.ahead_us.unwrap_or(0);
        let line = ReadAhead { place: self.time, ahead_us, number: self.number, text };
        // A line without a time keeps its position.
        let Some(time) = time else { return self.insert(line) };
        if let Some((leaped_to, leaped)) = self.leaped.take() {
            let goes_on = match leaped_to > self.time {
                true => !is_leap(time, leaped_to),
                false => !is_leap(leaped_to, time),
            };
            if goes_on {
                self.time = leaped_to;
                self.insert(ReadAhead { place: leaped_to, ..leaped });
            } else {
                self.insert(leaped);
            }
        }
        if self.number > 1 && (is_leap(self.time, time) || is_leap(time, self.time)) {
            self.leaped = Some((time, ReadAhead { place: self.time, ..line }));
            return;
        }
        self.time = time;
        self.insert(ReadAhead { place: time, ..line });
    }

    /// The time of a line by the store's clock, as far as known.
    fn by_the_store(&mut self, LineTime { noted, decided }: LineTime) -> u64 {
        let Some(decided) = decided else { return noted.saturating_add_signed(self.ahead_us.unwrap_or(0)) };
        // A line's time is somewhere between request and answer, so each gives only a rough offset.
        let seen = decided.cast_signed().saturating_sub(noted.cast_signed());
        let known = self.ahead_us.unwrap_or(seen);
        self.ahead_us = Some(known.saturating_add(seen.saturating_sub(known) / STEADY));
        decided
    }

    fn insert(&mut self, line: ReadAhead) {
        match self.ahead.back() {
            Some(last) if self.is_after(last, &line) => {
                // It is seldom far from its position in the log.
                let later =
                    self.ahead.iter().rev().take(NEAR).take_while(|other| self.is_after(other, &line));
                let before = match later.count() {
                    NEAR => self.ahead.partition_point(|other| !self.is_after(other, &line)),
                    later => self.ahead.len() - later,
                };
                self.ahead.insert(before, line);
            }
            _ => self.ahead.push_back(line),
        }
    }

    /// Whether `other` comes after `line`. Ranks are compared only for equal times.
    fn is_after(&self, other: &ReadAhead, line: &ReadAhead) -> bool {
        let ranks = || (self.rank(other), other.number).cmp(&(self.rank(line), line.number));
        other.place.cmp(&line.place).then_with(ranks).is_gt()
    }

    fn rank(&self, line: &ReadAhead) -> Rank {
        self.text(line.text.clone()).map_or(Rank::Unknown, rank_of)
    }
}

impl<R> fmt::Debug for LogSource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogSource::Open(..) => "Open",
            LogSource::OnDemand(_) => "OnDemand",
        })
    }
}

impl<R> fmt::Debug for LogState<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogState::Open(_) => "Open",
            LogState::Waiting(_) => "Waiting",
            LogState::Ended => "Ended",
        })
    }
}

/// Whether `to` is more than a day after `from`.
fn is_leap(from: u64, to: u64) -> bool {
    to > from.saturating_add(LEAP.get())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn lines(logs: &[&str]) -> Vec<String> {
        lines_of(logs)
    }

    fn lines_of(logs: &[&str]) -> Vec<String> {
        given_out(MergeByTime::new(logs.iter().map(|log| (Reader::new(log.as_bytes()), None))))
    }

    fn given_out(mut ordered: MergeByTime<impl Read>) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(MergedLine { number, line, .. }) = ordered.next_line().unwrap() {
            let Line::Text(text) = line else { panic!("no line is long") };
            all.push(format!("{number} {}", String::from_utf8_lossy(text)));
        }
        all
    }

    fn log(times: &[u64]) -> String {
        times.iter().map(|time| format!("{{\"time_us\":{time}}}\n")).collect()
    }

    #[test]
    fn lines_of_several_logs_come_in_the_order_of_their_times_and_equal_ones_stay_in_theirs() {
        let read = lines(&[&log(&[10, 30, 20, 30]), &log(&[15, 30, 5])]);
        let expected = ["3 5", "1 10", "1 15", "3 20", "2 30", "4 30", "2 30"];
        let expected = expected.map(|line| {
            let (number, time) = line.split_once(' ').unwrap();
            format!("{number} {{\"time_us\":{time}}}")
        });
        assert_eq!(read, expected);
    }

    fn decided(time: u64, decided: u64, rest: &str) -> String {
        format!("{{\"time_us\":{time},\"decided_us\":{decided},{rest}}}\n")
    }

    fn request(nth: &str, verdict: &str) -> String {
        format!("{nth}\"domain\":\"a\",\"rule\":null,\"verdict\":\"{verdict}\"")
    }

    #[test]
    fn lines_go_by_the_clock_of_the_store_whatever_those_of_their_nodes_show() {
        let any = &request("", "admitted");
        // The first node's clock is a minute behind the store's, the second one's a second ahead.
        let minute = 60_000_000;
        let one = [
            decided(10, minute + 10, any),
            decided(12, minute + 30, any),
            // Without a store time; counts as 0.02 ms after the first.
            log(&[30]),
            decided(60, minute + 60, any),
        ];
        let other = [
            decided(2 * minute, minute + 20, any),
            log(&[2 * minute + 7]),
            decided(2 * minute + 30, minute + 50, any),
        ];
        let (one, other) = (one.concat(), other.concat());
        assert_eq!(order(&[&one, &other]), ["a1", "b1", "b2", "a2", "a3", "b3", "a4"]);
    }

    #[test]
    fn of_one_moment_who_was_admitted_comes_first_and_then_who_was_refused_in_the_order_of_the_call() {
        let lines = [
            decided(1, 50, &request("\"nth\":4,", "refused")),
            decided(2, 50, &request("", "refused")),
            decided(3, 50, "\"event\":\"penalized\",\"penalty\":\"0000000000000001\""),
            decided(4, 50, &request("\"nth\":3,", "admitted")),
            decided(5, 50, &request("\"nth\":1,", "refused")),
            decided(6, 50, "\"event\":\"released\",\"lease\":\"0000000000000002\""),
            decided(7, 50, &request("\"nth\":2,", "admitted")),
        ];
        let in_order = ["6", "4", "7", "5", "1", "2", "3"];
        let numbers = |logs: &[&str]| -> Vec<String> {
            lines_of(logs).iter().map(|line| line[..1].to_owned()).collect()
        };
        assert_eq!(numbers(&[&lines.concat()]), in_order);
        // The same from two logs with separate line numbers.
        let (one, other) = (lines[..4].concat(), lines[4..].concat());
        assert_eq!(numbers(&[&one, &other]), ["2", "4", "3", "1", "1", "2", "3"]);
        // Without store times they keep their order.
        let plain: String = lines
            .iter()
            .map(|line| line.replace("\"decided_us\":50,", "").replacen(|c: char| c.is_ascii_digit(), "9", 1))
            .collect();
        assert_eq!(numbers(&[&plain]), ["1", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn a_line_that_tells_no_time_or_one_far_ahead_stays_in_its_place() {
        let text = format!("{}nonsense\n{}", log(&[10, 20]), log(&[9_000_000_000_000, 30, 40]));
        let numbers: Vec<String> = lines(&[&text]).iter().map(|line| line[..1].to_owned()).collect();
        assert_eq!(numbers, ["1", "2", "3", "4", "5", "6"]);
    }

    const DAY: u64 = 86_400_000_000;

    /// The order of the lines, each as its log and its number there.
    fn order(logs: &[&str]) -> Vec<String> {
        let name = |line: &String| {
            let (number, text) = line.split_once(' ').unwrap();
            let log = logs.iter().position(|log| log.lines().any(|line| line == text)).unwrap();
            format!("{}{number}", char::from(b'a' + u8::try_from(log).unwrap()))
        };
        lines(logs).iter().map(name).collect()
    }

    #[test]
    fn a_log_with_gaps_of_days_is_merged_with_one_that_has_none() {
        let gaps = log(&[0, 2, 4].map(|days| 10 + days * DAY));
        let steady = log(&[0, 1, 2, 3, 4, 5].map(|days| 20 + days * DAY));
        let expected = ["a1", "b1", "b2", "a2", "b3", "b4", "a3", "b5", "b6"];
        assert_eq!(order(&[&gaps, &steady]), expected);
    }

    #[test]
    fn one_line_far_behind_its_neighbours_stays_in_its_place_and_takes_no_other_along() {
        let torn = log(&[10 * DAY, 10 * DAY + 2, 7, 10 * DAY + 4, 10 * DAY + 6]);
        let steady = log(&[10 * DAY + 1, 10 * DAY + 3, 10 * DAY + 5]);
        assert_eq!(order(&[&torn, &steady]), ["a1", "b1", "a2", "a3", "b2", "a4", "b3", "a5"]);
        // Two lines glued together have no time.
        let glued = format!("{}{{\"time_us\":7{}{}", log(&[10 * DAY]), log(&[1]), log(&[10 * DAY + 6]));
        assert_eq!(order(&[&glued, &steady]), ["a1", "a2", "b1", "b2", "b3", "a3"]);
    }

    #[test]
    fn a_log_that_goes_on_with_earlier_days_is_read_from_there() {
        let times = [10 * DAY, 10 * DAY + 1, DAY, DAY + 1, DAY + 2];
        assert_eq!(order(&[&log(&times)]), ["a3", "a4", "a5", "a1", "a2"]);
    }

    #[test]
    fn texts_outlive_the_buffer_that_they_were_read_into() {
        // Several blocks; the first line is held until the end.
        let last = DAY / 2;
        let times = [last].into_iter().chain((0..200_000).map(|n| n ^ 1));
        let text: String = times.map(|time| log(&[time])).collect();
        let read = lines(&[&text]);
        assert_eq!(read.len(), 200_001);
        let expected = |time: usize| format!("{} {{\"time_us\":{time}}}", (time ^ 1) + 2);
        assert!(read.iter().take(200_000).enumerate().all(|(time, line)| *line == expected(time)));
        assert_eq!(read[200_000], format!("1 {{\"time_us\":{last}}}"));
    }

    #[test]
    fn what_is_out_of_order_by_more_than_is_read_ahead_is_still_given_out() {
        let times: Vec<u64> = (100..100 + 2 * AHEAD as u64).chain([1]).collect();
        let read = lines(&[&log(&times)]);
        assert_eq!(read.len(), times.len());
        assert!(read.iter().any(|line| line.ends_with(":1}")));
    }

    /// A log that counts how many are open.
    struct Counted {
        log: io::Cursor<String>,
        open: Arc<AtomicUsize>,
    }

    impl Read for Counted {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.log.read(into)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The lines of logs that are opened on demand, and how many were open at once.
    fn on_demand(logs: &[String]) -> (Vec<String>, usize) {
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let sources = logs.iter().map(|log| {
            let (log, open, most) = (log.clone(), open.clone(), most.clone());
            LogSource::OnDemand(Box::new(move || {
                most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                Ok(Reader::small(Counted { log: io::Cursor::new(log.clone()), open: open.clone() }))
            }))
        });
        let lines = given_out(MergeByTime::of(sources));
        (lines, most.load(Ordering::Relaxed))
    }

    proptest! {
        #[test]
        fn logs_that_are_opened_on_demand_give_the_same_lines_in_the_same_order(
            times in vec(vec(prop_oneof![0..50_u64, 0..9 * DAY], 0..12), 1..8)
        ) {
            let logs: Vec<String> = times.iter().map(|times| log(times)).collect();
            let texts: Vec<&str> = logs.iter().map(String::as_str).collect();
            prop_assert_eq!(on_demand(&logs).0, lines(&texts));
        }
    }

    #[test]
    fn of_logs_that_follow_one_another_one_is_open_at_a_time() {
        let logs: Vec<String> =
            (0..100).map(|hour| log(&[0, 1, 2].map(|n| hour * 3_600_000_000 + n))).collect();
        let (lines, most) = on_demand(&logs);
        assert_eq!((lines.len(), most), (300, 1));
    }
}
