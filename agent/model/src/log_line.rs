//! One line of a CRI log: `<RFC 3339 time> <stdout|stderr> <P|F>[:tags] <text>`. Pure: owns the
//! parser; never reads a file. Called by who follows a log, and by who serves one.

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// RFC 3339 with nanoseconds, as the runtime wrote it.
    pub time: String,
    /// Where it was written to.
    pub stream: Stream,
    /// More of the same line follows.
    pub partial: bool,
    /// As written by the program, not always UTF-8; without the line feed.
    pub text: Vec<u8>,
}

/// `None` when the bytes are not of that form.
#[must_use]
pub fn parse(entry: &[u8]) -> Option<Line> {
    let mut parts = entry.splitn(4, |b| *b == b' ');
    let time = parts.next().filter(|time| !time.is_empty())?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let partial = match parts.next()?.split(|b| *b == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    let time = String::from_utf8_lossy(time).into_owned();
    Some(Line { time, stream, partial, text: parts.next().unwrap_or_default().to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_streams() {
        let line = parse(b"2026-01-01T00:00:00.000000001Z stdout F hello  world ").unwrap();
        let time = "2026-01-01T00:00:00.000000001Z".to_owned();
        let text = b"hello  world ".to_vec();
        assert_eq!(line, Line { time, stream: Stream::Stdout, partial: false, text });
        let line = parse(b"2026-01-01T00:00:00Z stderr P:x \xff").unwrap();
        let time = "2026-01-01T00:00:00Z".to_owned();
        assert_eq!(line, Line { time, stream: Stream::Stderr, partial: true, text: b"\xff".to_vec() });
        assert_eq!(parse(b"2026-01-01T00:00:00Z stdout F ").unwrap().text, b"");
        for bad in [&b""[..], b"x", b"t stdout", b"t stdin F x", b"t stdout Q x"] {
            assert_eq!(parse(bad), None);
        }
    }
}
