//! Which top module of a crate names which other: reads `use` trees and paths from `crate`, `super` and `self` out of
//! its sources as text. Leaves out what is compiled for tests alone. Never judges; called by `floors`.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{Token, tokens};

/// One path in one file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub from: String,
    pub to: String,
    pub file: String,
    pub line: usize,
    /// The whole path, from the crate's root.
    pub path: String,
}

/// What the sources of a crate say.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// The top modules, without those of tests.
    pub modules: BTreeSet<String>,
    pub all: Vec<Import>,
}

/// Reads the crate whose sources stand in `folder` ("agent/src"), from files by their path.
pub(crate) fn imports(folder: &str, sources: &BTreeMap<String, String>) -> Imports {
    let Some((root, _)) =
        ["lib.rs", "main.rs"].iter().find_map(|name| sources.get_key_value(&format!("{folder}/{name}")))
    else {
        return Imports::default();
    };
    let mut reader = ImportReader { sources, exports: BTreeMap::new(), read: Imports::default() };
    let declared = Scan::of(&sources[root], &[]);
    reader.read.modules = declared.modules.iter().cloned().collect();
    // `pub use chain::Error` makes `crate::Error` a name of `chain`.
    for (path, _) in &declared.exports {
        if let (Some(first), Some(last)) = (path.first(), path.last())
            && reader.read.modules.contains(first)
        {
            reader.exports.insert(last.clone(), first.clone());
        }
    }
    for module in declared.modules {
        reader.file(folder, &[module]);
    }
    reader.read.all.sort();
    reader.read
}

struct ImportReader<'a> {
    sources: &'a BTreeMap<String, String>,
    /// Names that the crate's root hands on, by the module they come from.
    exports: BTreeMap<String, String>,
    read: Imports,
}

impl ImportReader<'_> {
    /// The file of the module at `path`, and those of the modules that it declares.
    fn file(&mut self, folder: &str, path: &[String]) {
        let file = format!("{folder}/{}.rs", path.join("/"));
        // A module in braces has no file: it was read with the one that it stands in.
        let Some(text) = self.sources.get(&file) else { return };
        let scan = Scan::of(text, path);
        let top = &path[0];
        for (named, line) in scan.paths {
            let Some(first) = named.first() else { continue };
            let to = self.exports.get(first).unwrap_or(first);
            if to != top {
                let path = named.join("::");
                self.read.all.push(Import {
                    from: top.clone(),
                    to: to.clone(),
                    file: file.clone(),
                    line,
                    path,
                });
            }
        }
        for module in scan.modules {
            let mut inner = path.to_vec();
            inner.push(module);
            self.file(folder, &inner);
        }
    }
}

/// One file, as far as it was read.
struct Scan<'a> {
    tokens: Vec<(Token<'a>, usize)>,
    at: usize,
    /// The module that the file is.
    file: Vec<String>,
    /// Modules in braces around the place, each with the depth of its brace.
    inside: Vec<(String, usize)>,
    depth: usize,
    /// Modules that have files of their own (or stand in braces), without those for tests.
    modules: Vec<String>,
    /// Paths from the crate's root, with their lines.
    paths: Vec<(Vec<String>, usize)>,
    /// What `pub use` names without `crate`, which only the root may mean as a path of its own modules.
    exports: Vec<(Vec<String>, usize)>,
}

impl<'a> Scan<'a> {
    fn of(text: &'a str, file: &[String]) -> Self {
        let mut scan = Self {
            tokens: tokens(text),
            at: 0,
            file: file.to_vec(),
            inside: Vec::new(),
            depth: 0,
            modules: Vec::new(),
            paths: Vec::new(),
            exports: Vec::new(),
        };
        while scan.at < scan.tokens.len() {
            scan.step();
        }
        scan
    }

    fn token(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).map(|(token, _)| *token)
    }

    fn is(&self, ahead: usize, mark: char) -> bool {
        self.token(ahead) == Some(Token::Mark(mark))
    }

    fn step(&mut self) {
        match self.token(0) {
            Some(Token::Mark('#')) => self.attribute(),
            Some(Token::Mark('{')) => {
                self.depth += 1;
                self.at += 1;
            }
            Some(Token::Mark('}')) => {
                self.depth = self.depth.saturating_sub(1);
                if self.inside.last().is_some_and(|(_, depth)| *depth == self.depth) {
                    self.inside.pop();
                }
                self.at += 1;
            }
            Some(Token::Word("mod")) => self.module(),
            Some(Token::Word("use")) if self.file.is_empty() => {
                self.at += 1;
                let names = self.tree(Vec::new());
                self.exports.extend(names);
            }
            Some(Token::Word("crate" | "super" | "self")) if self.is(1, ':') && self.is(2, ':') => {
                self.path();
            }
            _ => self.at += 1,
        }
    }

    /// `#[…]`; what stands below one that says `cfg(test)` is passed over.
    fn attribute(&mut self) {
        let start = self.at;
        self.at += if self.is(1, '!') { 2 } else { 1 };
        if !self.is(0, '[') {
            return;
        }
        self.closed();
        let words: Vec<&str> = self.tokens[start..self.at]
            .iter()
            .filter_map(|(token, _)| match token {
                Token::Word(word) => Some(*word),
                _ => None,
            })
            .collect();
        if words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"not") {
            while self.is(0, '#') {
                self.at += 1;
                self.closed();
            }
            self.item();
        }
    }

    /// From an opening bracket to behind the one that closes it.
    fn closed(&mut self) {
        let mut open = 0_usize;
        while let Some(token) = self.token(0) {
            match token {
                Token::Mark('(' | '[' | '{') => open += 1,
                Token::Mark(')' | ']' | '}') => open = open.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return;
            }
        }
    }

    /// Behind an item (to its `;` or its braces), or behind a field or an arm (to its comma).
    fn item(&mut self) {
        const ITEMS: [&str; 15] = [
            "mod",
            "use",
            "fn",
            "impl",
            "struct",
            "enum",
            "trait",
            "const",
            "static",
            "type",
            "async",
            "unsafe",
            "extern",
            "let",
            "macro_rules",
        ];
        if self.token(0) == Some(Token::Word("pub")) {
            self.at += 1;
            if self.is(0, '(') {
                self.closed();
            }
        }
        let item = matches!(self.token(0), Some(Token::Word(word)) if ITEMS.contains(&word));
        // `use a::{b};` and `let x = S { a };` go on behind their braces.
        let to_semicolon = matches!(self.token(0), Some(Token::Word("use" | "let" | "static" | "type")));
        while let Some(token) = self.token(0) {
            match token {
                Token::Mark(';') => {
                    self.at += 1;
                    return;
                }
                Token::Mark(',') if !item => {
                    self.at += 1;
                    return;
                }
                Token::Mark('}' | ')') => return,
                Token::Mark(mark @ ('(' | '[' | '{')) => {
                    self.closed();
                    if mark == '{' && !to_semicolon {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    fn module(&mut self) {
        let Some(Token::Word(name)) = self.token(1) else {
            self.at += 1;
            return;
        };
        if self.is(2, ';') {
            // One that a module in braces declares is rare enough to be refused by not being found.
            self.modules.push(name.to_owned());
        } else if self.is(2, '{') {
            self.inside.push((name.to_owned(), self.depth));
        }
        self.at += 2;
    }

    /// A path that begins with `crate`, `super` or `self`.
    fn path(&mut self) {
        let mut base = Vec::new();
        if self.token(0) != Some(Token::Word("crate")) {
            base.extend(self.file.iter().cloned());
            base.extend(self.inside.iter().map(|(name, _)| name.clone()));
        }
        while let Some(Token::Word(word @ ("crate" | "super" | "self"))) = self.token(0) {
            if word == "super" {
                base.pop();
            }
            self.at += 1;
            if !(self.is(0, ':') && self.is(1, ':')) {
                break;
            }
            self.at += 2;
        }
        let paths = self.tree(base);
        self.paths.extend(paths);
    }

    /// The rest of a path, which in a `use` may branch: each end with its line.
    fn tree(&mut self, mut base: Vec<String>) -> Vec<(Vec<String>, usize)> {
        let mut line = 0;
        while let Some((token, at)) = self.tokens.get(self.at).copied() {
            line = at;
            match token {
                Token::Word("self") => {}
                Token::Word(name) => base.push(name.to_owned()),
                Token::Mark('*') => base.push("*".to_owned()),
                Token::Mark('{') => return self.branches(&base),
                _ => break,
            }
            self.at += 1;
            if !(self.is(0, ':') && self.is(1, ':')) {
                break;
            }
            self.at += 2;
        }
        vec![(base, line)]
    }

    fn branches(&mut self, base: &[String]) -> Vec<(Vec<String>, usize)> {
        let mut found = Vec::new();
        self.at += 1;
        while !self.is(0, '}') && self.token(0).is_some() {
            found.extend(self.tree(base.to_vec()));
            while !self.is(0, ',') && !self.is(0, '}') && self.token(0).is_some() {
                self.at += 1; // `as NAME`
            }
            if self.is(0, ',') {
                self.at += 1;
            }
        }
        self.at += 1;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Vec<(String, String, String, usize)> {
        let sources =
            files.iter().map(|(path, text)| (format!("c/src/{path}"), (*text).to_owned())).collect();
        imports("c/src", &sources).all.into_iter().map(|i| (i.from, i.to, i.file, i.line)).collect()
    }

    fn tos(lib: &str, text: &str) -> Vec<String> {
        read(&[("lib.rs", lib), ("a.rs", text)]).into_iter().map(|(_, to, ..)| to).collect()
    }

    #[test]
    fn a_tree_of_uses_names_each_of_its_modules() {
        let text =
            "//! `crate::x` is said, not used.\nuse crate::{b::{C, d}, e as f};\npub use crate::g::*;\n";
        assert_eq!(tos("mod a;", text), ["b", "b", "e", "g"]);
        assert_eq!(
            tos("mod a;", "fn f(b: &crate::b::B) { g::<crate::c::C>(\"crate::x\", 'c') }"),
            ["b", "c"]
        );
    }

    #[test]
    fn super_and_self_are_counted_from_where_they_stand() {
        let found = read(&[
            ("lib.rs", "mod a;"),
            (
                "a.rs",
                "mod b; use self::b::X; use super::c::Y; mod d { use super::super::e::Z; use super::b; }",
            ),
            ("a/b.rs", "use super::Own;\nuse super::super::f::{G, H};"),
        ]);
        let found: Vec<_> =
            found.iter().map(|(_, to, file, line)| (to.as_str(), file.as_str(), *line)).collect();
        assert_eq!(
            found,
            [
                ("c", "c/src/a.rs", 1),
                ("e", "c/src/a.rs", 1),
                ("f", "c/src/a/b.rs", 2),
                ("f", "c/src/a/b.rs", 2)
            ]
        );
    }

    #[test]
    fn what_is_compiled_for_tests_alone_is_not_read() {
        let text = "#[cfg(test)]\nuse crate::{b};\n#[cfg(any(test, feature = \"testing\"))]\npub mod fake;\n\
                    struct S { #[cfg(test)] c: crate::c::C, d: crate::d::D }\n\
                    #[cfg(test)]\n#[allow(x)]\npub(crate) fn f() -> [u8; 2] { crate::e::f() }\n\
                    #[cfg(not(test))]\nuse crate::g::G;\n#[cfg(test)]\nmod tests { use crate::h; }\n";
        let found =
            read(&[("lib.rs", "mod a; #[cfg(test)] mod t;"), ("a.rs", text), ("a/fake.rs", "use crate::i;")]);
        assert_eq!(found.into_iter().map(|(_, to, ..)| to).collect::<Vec<_>>(), ["d", "g"]);
    }

    #[test]
    fn a_name_that_the_root_hands_on_counts_for_its_module() {
        assert_eq!(tos("mod a; mod chain; pub use chain::{Error, x as y};", "use crate::Error;"), ["chain"]);
    }
}
