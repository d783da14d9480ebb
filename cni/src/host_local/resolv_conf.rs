//! Name servers from a `resolv.conf(5)`, for the result.
//!
//! Owns which lines count: those that the upstream plugin passes on. Never follows what they say. Called by
//! `host_local::add` when the configuration names such a file.

use std::io;
use std::path::Path;

use crate::result::Dns;

pub(super) fn read(path: &Path) -> io::Result<Dns> {
    std::fs::read_to_string(path).map(|text| parse(&text))
}

fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next().filter(|word| !word.starts_with(['#', ';'])) else { continue };
        let values = words.map(String::from);
        match keyword {
            "nameserver" => dns.nameservers.extend(values.take(1)),
            "domain" => dns.domain = values.take(1).collect(),
            // The last of several counts, as for the resolver itself.
            "search" => dns.search = values.collect(),
            "options" => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_finds_its_place() {
        let text = "# a comment\n; another\nnameserver 10.0.0.53\nnameserver fd00::53 \ndomain example.org\n\
                    search a.org\nsearch b.org c.org\noptions ndots:5 edns0\nsortlist 1.2.3.4\nnameserver\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["10.0.0.53", "fd00::53"]);
        assert_eq!(dns.domain, "example.org");
        assert_eq!(dns.search, ["b.org", "c.org"]);
        assert_eq!(dns.options, ["ndots:5", "edns0"]);
    }
}
