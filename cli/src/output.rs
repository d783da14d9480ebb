//! What goes to the terminal. Owns whole lines and tables; never decides what to say.
//! Called by every command.

use std::io::{self, Write};

/// Text on stdout. A closed pipe is the caller's business.
pub(crate) fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

/// A line on stderr. There is nobody left to tell when that fails.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Columns as wide as their widest cell, three spaces between, as kubectl's.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        text.push_str(cells.join("   ").trim_end());
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
    fn tables_align() {
        let rows = [vec!["A".to_owned(), "B".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&rows), "A      B\nlong\n");
        assert_eq!(one_line("a\u{1b}[1m\nb"), "a [1m b");
    }
}
