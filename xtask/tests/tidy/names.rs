//! How many types share a name: at most three, so that a name says which thing it is. Owns the list of those of the
//! agent that still have more; none may gain one. Associated types are not counted, and no module's `Error`.

use std::collections::BTreeMap;

use super::tokens::{Token, tokens};

/// As CONTRIBUTING.md says.
const MOST: usize = 3;

/// What a module's error is called with thiserror.
const IDIOM: &str = "Error";

/// Name, and how many types have it. An entry that is no longer needed is to go.
const MORE: &[(&str, usize)] = &[
    ("Entry", 4),
    ("Fake", 4),
    ("File", 4),
    ("Inner", 4),
    ("Kind", 8),
    ("Lists", 4),
    ("Request", 4),
    ("Settings", 8),
    ("State", 10),
    ("Stream", 4),
];

/// The types that one file declares, each with its line.
fn types(text: &str) -> Vec<(&str, usize)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    // Of each brace that is open: whether types directly in it are associated ones.
    let mut open = Vec::new();
    let mut is_head_of_impl = false;
    for (at, (token, line)) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| tokens[before].0);
        match token {
            Token::Mark('{') => open.push(std::mem::take(&mut is_head_of_impl)),
            Token::Mark('}') => drop(open.pop()),
            // `impl` in a signature stands behind a mark of another kind, or behind a word.
            Token::Word("impl" | "trait") if begins_item(before) => is_head_of_impl = true,
            _ => {}
        }
        let (Token::Word(word), Some((Token::Word(name), _))) = (token, tokens.get(at + 1)) else { continue };
        let declares = match *word {
            "struct" | "enum" | "union" | "trait" => true,
            "type" => open.last() != Some(&true),
            _ => false,
        };
        if declares && begins_item(before) {
            found.push((*name, *line));
        }
    }
    found
}

/// Whether an item may stand behind this: the end of another, a brace, an attribute, or a word that belongs to it.
fn begins_item(before: Option<Token<'_>>) -> bool {
    matches!(before, None | Some(Token::Mark('{' | '}' | ';' | ']' | ')') | Token::Word("pub" | "unsafe")))
}

/// What is wrong with the names of `places`: each type's name with where it is declared.
fn offenders(places: &BTreeMap<String, Vec<String>>, more: &[(&str, usize)]) -> Vec<String> {
    let mut more: BTreeMap<&str, usize> = more.iter().copied().collect();
    let mut offenders = Vec::new();
    for (name, places) in places.iter().filter(|(_, places)| places.len() > MOST) {
        let (count, list) = (places.len(), places.join(", "));
        match more.remove(name.as_str()) {
            Some(most) if count <= most => {}
            Some(most) => offenders.push(format!("{name}: {count} types have it, and {most} had: {list}")),
            None => offenders.push(format!("{name}: {count} types have it: {list}")),
        }
    }
    offenders.extend(more.keys().map(|name| {
        format!("{name}: at most {MOST} types have it now: take it off the list in xtask/tests/tidy/names.rs")
    }));
    offenders
}

#[test]
fn a_name_stands_for_three_types_at_most() {
    let sources = super::sources();
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in &sources {
        for (name, line) in types(text).into_iter().filter(|(name, _)| *name != IDIOM) {
            places.entry(name.to_owned()).or_default().push(format!("{file}:{line}"));
        }
    }
    assert!(places.len() > 1000, "only {} names of types were found: has the form changed?", places.len());
    super::assert_none(
        "a name stands for at most three types: say whose it is (`ImageStore`, `ExecRequest`)",
        &offenders(&places, MORE),
    );
}

#[test]
fn all_types_count_but_associated_ones() {
    let text = "pub struct A<'a>(&'a u8);\n#[derive(Debug)]\npub(crate) enum B { struct_like }\nunsafe trait C: D { type No; }\n\
                impl<T> C for A<'_> where T: X {\n    type No = u8;\n    fn f(self) -> impl E { type F = u8; union G { a: u8 } }\n}\n\
                fn g(a: impl Fn()) { struct H; // struct No\n \"struct No\" }\npub(in crate::a) type I = A<'static>;\n";
    let names: Vec<&str> = types(text).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["A", "B", "C", "F", "G", "H", "I"]);
}

#[test]
fn a_fourth_type_is_one_too_many_and_the_list_is_no_longer_than_it_must_be() {
    let places = [("Three", 3), ("Four", 4), ("Listed", 5), ("Grown", 6), ("Mended", 2)]
        .into_iter()
        .map(|(name, count)| (name.to_owned(), vec!["a.rs:1".to_owned(); count]))
        .collect();
    let found = offenders(&places, &[("Listed", 5), ("Grown", 5), ("Mended", 4)]);
    let names: Vec<&str> = found.iter().filter_map(|words| words.split(':').next()).collect();
    assert_eq!(names, ["Four", "Grown", "Mended"]);
}
