//! What a person sees of a program's output: lines that wrap and scroll, a cursor that goes up, parts
//! that are erased. Owns as much of a terminal as the commands use; anything else it shows as it is,
//! so that a test sees it. Pure. Called by [`super::Pty`].

/// A window, and what has scrolled out of it.
#[derive(Debug, Clone)]
pub struct Screen {
    width: usize,
    height: usize,
    /// All rows ever; the last `height` are the window.
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    /// Empty.
    #[must_use]
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, rows: vec![Vec::new()], row: 0, column: 0 }
    }

    /// Writes a program's output.
    pub fn write(&mut self, text: &str) {
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\r' => self.column = 0,
                '\n' => self.down(),
                '\u{1b}' if rest.as_str().starts_with('[') => {
                    rest.next();
                    let parameters = rest.as_str();
                    let digits: String = parameters.chars().take_while(char::is_ascii_digit).collect();
                    let command = rest.nth(digits.len());
                    match command {
                        Some('A') => self.up(digits.parse().unwrap_or(1)),
                        Some('J') if digits.is_empty() => self.erase_below(),
                        other => self.put_all(&format!("<ESC[{digits}{}>", other.unwrap_or(' '))),
                    }
                }
                c => self.put(c),
            }
        }
    }

    /// Every row, those that have scrolled away too, without spaces at the ends.
    #[must_use]
    pub fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned();
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    fn put_all(&mut self, text: &str) {
        text.chars().for_each(|c| self.put(c));
    }

    fn put(&mut self, c: char) {
        if self.column == self.width {
            self.column = 0;
            self.down();
        }
        let column = self.column;
        if let Some(row) = self.rows.get_mut(self.row) {
            if row.len() <= column {
                row.resize(column + 1, ' ');
            }
            row[column] = c;
        }
        self.column += 1;
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
    }

    /// Never out of the window.
    fn up(&mut self, count: usize) {
        let top = self.rows.len().saturating_sub(self.height);
        self.row = self.row.saturating_sub(count).max(top);
    }

    fn erase_below(&mut self) {
        if let Some(row) = self.rows.get_mut(self.row) {
            row.truncate(self.column);
        }
        self.rows.iter_mut().skip(self.row + 1).for_each(Vec::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mut screen = Screen::new(5, 3);
        screen.write(text);
        screen.text()
    }

    #[test]
    fn lines_wrap_and_are_drawn_over() {
        assert_eq!(shown("abcdefg\r\nx"), "abcde\nfg\nx");
        assert_eq!(shown("a\r\nb\r\n\u{1b}[2A\u{1b}[Jc"), "c");
        assert_eq!(shown("1\r\n2\r\n3\r\n4\r\n\u{1b}[9A\u{1b}[J5"), "1\n2\n5", "not out of the window");
        assert_eq!(shown("\u{1b}[31m"), "<ESC[\n31m>", "what it does not know is seen");
    }
}
