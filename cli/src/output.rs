//! What goes to the terminal. Owns whole lines and tables; never decides what to say.
//! Called by every command.

pub(crate) mod colour;

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
/// `12.3MB`, decimal as crictl and docker print sizes.
pub(crate) use gantry_agent::timeline::render::size as bytes;
use serde::Serialize;

use colour::Colour;

/// Lines that stay below everything else on the terminal; one writer at a time while there are any.
static FOOTER: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Home, and everything from there on gone.
pub(crate) const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Text on stdout. A closed pipe is the caller's business.
pub(crate) fn print(text: &[u8]) -> io::Result<()> {
    above(|| {
        let mut out = io::stdout().lock();
        out.write_all(text)?;
        out.flush()
    })
}

/// A line on stderr. There is nobody left to tell when that fails.
pub(crate) fn say(line: &str) {
    above(|| {
        let _ = writeln!(io::stderr().lock(), "{line}");
    });
}

/// Text on stderr as it is, for drawing over.
pub(crate) fn say_part(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Shows these lines, each with its end, below everything else from now on. For a terminal on stderr.
pub(crate) fn footer(lines: Vec<String>) {
    let mut shown = FOOTER.lock().unwrap_or_else(PoisonError::into_inner);
    if *shown != lines {
        say_part(&format!("{}{}", erase(shown.len()), lines.concat()));
        *shown = lines;
    }
}

/// These lines, each with its end, as they fit on the terminal on stderr: what wrapped or scrolled
/// away could not be drawn over.
pub(crate) fn fit(lines: Vec<String>) -> Vec<String> {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            cut(lines, usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => lines,
    }
}

fn cut(lines: Vec<String>, columns: usize, rows: usize) -> Vec<String> {
    // The cursor stands on a line of its own below them.
    let shown = lines.into_iter().take(rows.saturating_sub(1));
    shown
        .map(|line| match line.trim_end_matches('\n') {
            text if text.chars().count() > columns => {
                text.chars().take(columns).chain(std::iter::once('\n')).collect()
            }
            _ => line,
        })
        .collect()
}

/// Whole lines, above the footer.
fn above<T>(write: impl FnOnce() -> T) -> T {
    let shown = FOOTER.lock().unwrap_or_else(PoisonError::into_inner);
    if shown.is_empty() {
        return write();
    }
    say_part(&erase(shown.len()));
    let result = write();
    say_part(&shown.concat());
    result
}

/// Back to the first of `lines` lines, and everything from there on gone.
pub(crate) fn erase(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\u{1b}[{lines}A\u{1b}[J") }
}

/// Indented JSON and a line end.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// YAML of one document.
pub(crate) fn yaml<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_saphyr::to_string(value)?)
}

/// `5s`, `2m`, `3h12m`, `4d`: an age as kubectl prints it.
pub(crate) fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |big: i64, unit: &str, small: i64, part: &str| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{part}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// Columns as wide as their widest cell, three spaces between, as kubectl's.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    table_in_colours(rows, |_, _| None)
}

/// The same; cells have the colour that `colour` gives for column and word. The first row is the head.
pub(crate) fn table_in_colours(
    rows: &[Vec<String>],
    colour: impl Fn(usize, &str) -> Option<Colour>,
) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut gap = 0;
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if cell.is_empty() {
                gap += width + 3;
                continue;
            }
            text.push_str(&" ".repeat(gap));
            gap = width - cell.chars().count() + 3;
            match colour(column, cell).filter(|_| number > 0) {
                Some(colour) => text.push_str(&colour.paint(cell)),
                None => text.push_str(cell),
            }
        }
        text.push('\n');
    }
    text
}

/// Text from elsewhere, on one line and without control characters.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_read_as_in_crictl_and_kubectl() {
        let sizes: Vec<String> = [0, 999, 1000, 12_345_678, 2_500_000_000].map(bytes).into();
        assert_eq!(sizes, ["0B", "999B", "1.0kB", "12.3MB", "2.5GB"]);
        let ages: Vec<String> =
            [0, 119, 120, 125, 3599, 3 * 3600 + 720, 30_000, 180_000, 900_000].map(age).into();
        assert_eq!(ages, ["0s", "119s", "2m", "2m5s", "59m", "3h12m", "8h", "2d2h", "10d"]);
    }

    #[test]
    fn what_is_drawn_over_neither_wraps_nor_scrolls() {
        let lines = || vec!["abcd\n".to_owned(), "abcde\n".to_owned(), "x\n".to_owned()];
        assert_eq!(cut(lines(), 4, 10), ["abcd\n", "abcd\n", "x\n"]);
        assert_eq!(cut(lines(), 80, 3), ["abcd\n", "abcde\n"]);
    }

    #[test]
    fn tables_align() {
        let rows = [vec!["A".to_owned(), "B".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&rows), "A      B\nlong\n");
        assert_eq!(one_line("a\u{1b}[1m\nb"), "a [1m b");
        let rows =
            [["A", "B", "C"], ["x", "", "y"], ["xx", "b", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "A    B   C\nx        y\nxx   b\n");
        let red = |column: usize, _: &str| (column == 0).then_some(Colour::Red);
        let text = table_in_colours(&rows, red);
        assert_eq!(text, "A    B   C\n\u{1b}[31mx\u{1b}[0m        y\n\u{1b}[31mxx\u{1b}[0m   b\n");
    }
}
