//! Commands and replies, as bytes. (Memcached calls these commands "meta": they say which fields to return.)

use tidegate_store_items::{Failure, Name};

/// What a server replied to one command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// An item, its compare-and-set number, and for how many seconds it is kept.
    Item {
        bytes: Vec<u8>,
        cas: u64,
        kept: Option<u64>,
    },
    /// It was done; the item's new compare-and-set number.
    Done {
        cas: u64,
    },
    /// There is no such item.
    Missing,
    /// The item is there, or is not what it was.
    Changed,
    Version(String),
    Statistics(Vec<(String, String)>),
    /// The server's words.
    Refused(String),
}

/// A length that no server sends: whatever follows is not Memcached's.
const LONGEST_LINE: usize = 8 * 1024;
const LONGEST_ITEM: usize = 1 << 30;

/// Reads an item, with its compare-and-set number.
pub(crate) fn get(command: &mut Vec<u8>, name: Name) {
    command.extend(b"mg ");
    name.append(command);
    command.extend(b" v c\r\n");
}

/// Reads for how many seconds an item is kept.
pub(crate) fn left(command: &mut Vec<u8>, name: Name) {
    command.extend(b"mg ");
    name.append(command);
    command.extend(b" t\r\n");
}

/// What must be true for an item to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    /// There is none.
    IfMissing,
    /// It still has this compare-and-set number.
    IfSame(u64),
}

impl Only {
    fn append(self, command: &mut Vec<u8>) {
        match self {
            Only::IfMissing => command.extend(b" ME"),
            Only::IfSame(cas) => command.extend(format!(" C{cas}").bytes()),
        }
    }
}

/// Stores an item until `expires`: seconds from now, or since 1970 if more than thirty days.
pub(crate) fn set(command: &mut Vec<u8>, name: Name, bytes: &[u8], only: Only, expires: u64) {
    command.extend(b"ms ");
    name.append(command);
    command.extend(format!(" {} c T{expires}", bytes.len()).bytes());
    only.append(command);
    command.extend(b"\r\n");
    command.extend(bytes);
    command.extend(b"\r\n");
}

/// Deletes an item that is as it was.
pub(crate) fn delete(command: &mut Vec<u8>, name: Name, cas: u64) {
    command.extend(b"md ");
    name.append(command);
    Only::IfSame(cas).append(command);
    command.extend(b"\r\n");
}

/// Takes the first reply off `bytes`: the reply and its length. None while it is not all there; an error if no server says that.
pub(crate) fn take_reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let Some((line, mut length)) = first_line(bytes)? else { return Ok(None) };
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let reply = match word {
        "VA" => {
            let (size, flags) = rest.split_once(' ').unwrap_or((rest, ""));
            let size: usize = size.parse().map_err(|_| unexpected(line))?;
            if size > LONGEST_ITEM {
                return Err(unexpected(line));
            }
            let Some(item) = bytes.get(length..length + size + 2) else { return Ok(None) };
            let bytes = item.strip_suffix(b"\r\n").ok_or_else(|| "an item of another length".to_owned())?;
            length += size + 2;
            let kept = flag(flags, 't');
            Reply::Item { bytes: bytes.to_vec(), cas: flag(flags, 'c').unwrap_or_default(), kept }
        }
        // Without its value, an item has only flags.
        "HD" => match flag(rest, 't') {
            Some(kept) => Reply::Item { bytes: Vec::new(), cas: 0, kept: Some(kept) },
            None => Reply::Done { cas: flag(rest, 'c').unwrap_or_default() },
        },
        "EN" | "NF" => Reply::Missing,
        "EX" | "NS" => Reply::Changed,
        "VERSION" => Reply::Version(rest.to_owned()),
        "STAT" | "END" => return statistics(bytes),
        "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => Reply::Refused(if rest.is_empty() {
            "it does not know the command".to_owned()
        } else {
            rest.to_owned()
        }),
        _ => return Err(unexpected(line)),
    };
    Ok(Some((reply, length)))
}

fn statistics(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let (mut all, mut length) = (Vec::new(), 0);
    loop {
        let Some((line, taken)) = first_line(&bytes[length..])? else { return Ok(None) };
        length += taken;
        if line == "END" {
            return Ok(Some((Reply::Statistics(all), length)));
        }
        let mut words = line.splitn(3, ' ').skip(1);
        let (Some(name), Some(value)) = (words.next(), words.next()) else { return Err(unexpected(line)) };
        all.push((name.to_owned(), value.to_owned()));
    }
}

fn first_line(bytes: &[u8]) -> Result<Option<(&str, usize)>, String> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() > LONGEST_LINE { Err("a line without end".to_owned()) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| "bytes that are no text".to_owned())?;
    Ok(Some((line, end + 2)))
}

fn flag(flags: &str, name: char) -> Option<u64> {
    flags.split(' ').find_map(|flag| flag.strip_prefix(name)?.parse().ok())
}

fn unexpected(line: &str) -> String {
    format!("it does not answer as Memcached does, but {:?}", line.chars().take(60).collect::<String>())
}

/// A server's refusal, in its words, with what to do about it.
pub(crate) fn refused(said: &str) -> Failure {
    if said.contains("too large") {
        let why = format!("{said} (use a sliding_window for so large a limit, or raise the server's -I)");
        return Failure::TooLarge(why.into());
    }
    if said.contains("out of memory") {
        return Failure::NotApplied("out_of_memory", format!("{said} (raise the server's -m)").into());
    }
    Failure::NotApplied("other", said.to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(mut bytes: &[u8]) -> Vec<Reply> {
        let mut all = Vec::new();
        while let Some((reply, length)) = take_reply(bytes).unwrap() {
            all.push(reply);
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty());
        all
    }

    #[test]
    fn replies_of_a_real_server_are_read() {
        let bytes = b"VA 3 c1 t10\r\na\r\n\r\nHD c1\r\nHD t7\r\nNS c0\r\nEX c0\r\nNF c0\r\nEN\r\nVERSION 1.6.18\r\nERROR\r\n\
            STAT pid 1\r\nSTAT version 1.6.18\r\nEND\r\n";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            Reply::Item { bytes: b"a\r\n".to_vec(), cas: 1, kept: Some(10) },
            Reply::Done { cas: 1 },
            Reply::Item { bytes: Vec::new(), cas: 0, kept: Some(7) },
            Reply::Changed,
            Reply::Changed,
            Reply::Missing,
            Reply::Missing,
            Reply::Version("1.6.18".to_owned()),
            Reply::Refused("it does not know the command".to_owned()),
            Reply::Statistics(vec![pair("pid", "1"), pair("version", "1.6.18")]),
        ];
        assert_eq!(replies(bytes), expected);
    }

    #[test]
    fn a_reply_that_is_not_all_there_is_awaited() {
        let bytes = b"VA 3 c1\r\nabc\r\n";
        for end in 0..bytes.len() {
            assert_eq!(take_reply(&bytes[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn what_is_no_memcached_is_named() {
        for bytes in
            [&b"-ERR unknown command\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n", b"VA x\r\n", b"\xff\r\n"]
        {
            assert!(take_reply(bytes).is_err());
        }
    }
}
