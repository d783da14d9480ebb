//! Lines of a log on their way to a client. Owns what is left out of them and put before them; never
//! reads a file. Called by [`super::backlog`] and [`super::follow`].

use axum::body::Bytes;
use tokio::sync::mpsc;

use super::options::{Options, nanos};
use gantry_model::log_line::{Line, parse};

/// Collected before it is sent.
const PIECE: usize = 32 << 10;

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// There is room for more.
    On,
    /// The limit is reached or the client is gone.
    Enough,
}

/// Writes lines.
#[derive(Debug)]
pub(super) struct Writer {
    sender: mpsc::Sender<Bytes>,
    piece: Vec<u8>,
    timestamps: bool,
    since: Option<i64>,
    remain: u64,
    /// The last entry ended its line: a time may be put before the next.
    at_line_start: bool,
}

impl Writer {
    pub(super) fn new(options: &Options, sender: mpsc::Sender<Bytes>) -> Self {
        Self {
            sender,
            piece: Vec::new(),
            timestamps: options.timestamps,
            since: options.since,
            remain: options.limit.unwrap_or(u64::MAX),
            at_line_start: true,
        }
    }

    /// One entry, without its line feed. What is no entry is left out, as upstream does.
    pub(super) fn entry(&mut self, entry: &[u8]) -> Flow {
        let Some(line) = parse(entry) else { return Flow::On };
        let at_line_start = std::mem::replace(&mut self.at_line_start, !line.partial);
        let early = self.since.is_some_and(|since| nanos(&line.time).is_none_or(|time| time < since));
        if early {
            return Flow::On;
        }
        self.put(&line, at_line_start);
        if self.remain == 0 { Flow::Enough } else { Flow::On }
    }

    fn put(&mut self, line: &Line, at_line_start: bool) {
        let mut bytes = Vec::with_capacity(line.text.len() + 40);
        if self.timestamps && at_line_start {
            bytes.extend_from_slice(fixed_width(&line.time).as_bytes());
            bytes.push(b' ');
        }
        bytes.extend_from_slice(&line.text);
        if !line.partial {
            bytes.push(b'\n');
        }
        bytes.truncate(usize::try_from(self.remain).unwrap_or(usize::MAX));
        self.remain -= u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.piece.extend_from_slice(&bytes);
    }

    /// Enough has gathered to be sent.
    pub(super) fn is_full(&self) -> bool {
        self.piece.len() >= PIECE
    }

    fn take(&mut self) -> Option<Bytes> {
        (!self.piece.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.piece)))
    }

    /// Sends what has gathered.
    pub(super) async fn flush(&mut self) -> Flow {
        let Some(piece) = self.take() else { return Flow::On };
        match self.sender.send(piece).await {
            Ok(()) => Flow::On,
            Err(_) => Flow::Enough,
        }
    }

    /// Until the client is gone.
    pub(super) async fn wait_closed(&self) {
        self.sender.closed().await;
    }
}

/// With nine digits after the point, as upstream shows them; runtimes leave zeros out.
fn fixed_width(time: &str) -> String {
    let Some(zone) = time.rfind(['Z', '+', '-']).filter(|at| *at > 10) else { return time.to_owned() };
    let (clock, zone) = time.split_at(zone);
    let (whole, part) = clock.split_once('.').unwrap_or((clock, ""));
    format!("{whole}.{part:0<9}{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn written(options: &Options, entries: &[&str]) -> String {
        let (sender, mut receiver) = mpsc::channel(8);
        let mut writer = Writer::new(options, sender);
        for entry in entries {
            if writer.entry(entry.as_bytes()) == Flow::Enough {
                break;
            }
        }
        assert_eq!(writer.flush().now_or_never(), Some(Flow::On));
        drop(writer);
        let mut all = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).unwrap()
    }

    const ENTRIES: [&str; 5] = [
        "2026-01-01T00:00:00Z stdout F a",
        "rubbish",
        "2026-01-01T00:00:01.5Z stdout P b",
        "2026-01-01T00:00:02Z stdout F c",
        "2026-01-01T00:00:03+01:00 stderr F d",
    ];

    #[test]
    fn lines_as_a_client_wants_them() {
        let none = Options::default();
        assert_eq!(written(&none, &ENTRIES), "a\nbc\nd\n");
        let timestamps = Options { timestamps: true, ..none.clone() };
        assert_eq!(
            written(&timestamps, &ENTRIES),
            "2026-01-01T00:00:00.000000000Z a\n2026-01-01T00:00:01.500000000Z bc\n\
             2026-01-01T00:00:03.000000000+01:00 d\n"
        );
        assert_eq!(written(&Options { limit: Some(3), ..none.clone() }, &ENTRIES), "a\nb");
        // By time, not by text: the last entry is an hour older than it looks.
        let since = Options { since: nanos("2026-01-01T00:00:01Z"), ..none };
        assert_eq!(written(&since, &ENTRIES), "bc\n");
    }

    #[tokio::test]
    async fn nobody_reads() {
        let (sender, receiver) = mpsc::channel(1);
        let mut writer = Writer::new(&Options::default(), sender);
        drop(receiver);
        assert_eq!(writer.entry(ENTRIES[0].as_bytes()), Flow::On);
        assert_eq!(writer.flush().await, Flow::Enough);
    }
}
