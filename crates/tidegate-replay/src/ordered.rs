//! Lines of our own logs in the order of their times: of one log, whose lines several threads wrote, or of several nodes.
//!
//! A node writes a line when it has the answer, so that lines are out of order by as long as answers take. Some lines are
//! read ahead, and the earliest of them comes first. Of several logs the one goes on whose next line is the earliest.

use std::collections::VecDeque;
use std::io::{self, Read};

use crate::parse::time_of;
use crate::reader::{Line, Reader};

/// Lines of each log that are read ahead: more than come while the slowest of them waits for its answer.
const AHEAD: usize = 512;
/// A line that is this much ahead of the one before stays in its place: whether it is wrong, its neighbours tell.
const LEAP_US: u64 = 86_400_000_000;

/// Logs whose lines are read in the order of their times.
#[derive(Debug)]
pub struct Ordered<R> {
    logs: Vec<Log<R>>,
    /// The line that was given out last.
    line: Vec<u8>,
}

#[derive(Debug)]
struct Log<R> {
    reader: Reader<R>,
    /// In the order in which they are given out. Almost all are read in it, too.
    ahead: VecDeque<ReadAhead>,
    /// Buffers of lines that were given out.
    spare: Vec<Vec<u8>>,
    /// The number of the last line that was read, its time, and what it was ordered by.
    number: u64,
    time: u64,
    place: u64,
    at_end: bool,
}

/// A line that was read ahead. Those of the same time keep their order.
#[derive(Debug)]
struct ReadAhead {
    place: u64,
    number: u64,
    text: Option<Vec<u8>>,
}

impl<R: Read> Ordered<R> {
    /// The lines of these logs. What was read of one already comes back as its first line.
    #[must_use]
    pub fn new(logs: impl IntoIterator<Item = (Reader<R>, Option<Vec<u8>>)>) -> Self {
        let log = |(reader, first): (Reader<R>, Option<Vec<u8>>)| {
            let mut log = Log {
                reader,
                ahead: VecDeque::new(),
                spare: Vec::new(),
                number: 0,
                time: 0,
                place: 0,
                at_end: false,
            };
            if let Some(first) = first {
                log.put(Some(first));
            }
            log
        };
        Ordered { logs: logs.into_iter().map(log).collect(), line: Vec::new() }
    }

    /// How many bytes were read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.logs.iter().map(|log| log.reader.bytes()).sum()
    }

    /// The next line, and its number in its log; none at the end of all.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        for log in &mut self.logs {
            log.read_ahead()?;
        }
        let earliest = |log: &&mut Log<R>| log.ahead.front().map_or(u64::MAX, |next| next.place);
        let Some(log) = self.logs.iter_mut().filter(|log| !log.ahead.is_empty()).min_by_key(earliest) else {
            return Ok(None);
        };
        let Some(next) = log.ahead.pop_front() else { return Ok(None) };
        let Some(text) = next.text else { return Ok(Some((next.number, Line::TooLong))) };
        let last = std::mem::replace(&mut self.line, text);
        log.spare.push(last);
        Ok(Some((next.number, Line::Text(&self.line))))
    }
}

impl<R: Read> Log<R> {
    fn read_ahead(&mut self) -> io::Result<()> {
        while self.ahead.len() < AHEAD && !self.at_end {
            let mut buffer = self.spare.pop().unwrap_or_default();
            match self.reader.next_line()? {
                None => self.at_end = true,
                Some(Line::TooLong) => self.put(None),
                Some(Line::Text(text)) => {
                    buffer.clear();
                    buffer.extend_from_slice(text);
                    self.put(Some(buffer));
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, text: Option<Vec<u8>>) {
        // What tells no time stays where it is.
        let time = text.as_deref().and_then(time_of).unwrap_or(self.time);
        let leaps = self.number > 0 && time > self.time.saturating_add(LEAP_US);
        let place = if leaps { self.place } else { time };
        self.number += 1;
        (self.time, self.place) = (time, place);
        let line = ReadAhead { place, number: self.number, text };
        match self.ahead.back() {
            Some(last) if last.place > place => {
                let before = self.ahead.partition_point(|other| other.place <= place);
                self.ahead.insert(before, line);
            }
            _ => self.ahead.push_back(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(logs: &[&str]) -> Vec<String> {
        let logs = logs.iter().map(|log| (Reader::new(log.as_bytes()), None));
        let (mut ordered, mut all) = (Ordered::new(logs), Vec::new());
        while let Some((number, line)) = ordered.next_line().unwrap() {
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

    #[test]
    fn a_line_that_tells_no_time_or_one_far_ahead_stays_in_its_place() {
        let text = format!("{}nonsense\n{}", log(&[10, 20]), log(&[9_000_000_000_000, 30, 40]));
        let numbers: Vec<String> = lines(&[&text]).iter().map(|line| line[..1].to_owned()).collect();
        assert_eq!(numbers, ["1", "2", "3", "4", "5", "6"]);
    }

    #[test]
    fn what_is_out_of_order_by_more_than_is_read_ahead_is_still_given_out() {
        let times: Vec<u64> = (100..100 + 2 * AHEAD as u64).chain([1]).collect();
        let read = lines(&[&log(&times)]);
        assert_eq!(read.len(), times.len());
        assert!(read.iter().any(|line| line.ends_with(":1}")));
    }
}
