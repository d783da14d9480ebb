//! The node's resolver file, as pods with dnsPolicy Default get it. Owns its parser; never
//! reads the file. Called by the agent's wiring.

/// What a resolv.conf says, and what the runtime writes into each pod's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers, in order.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// The last `options` line.
    pub options: Vec<String>,
}

/// Reads resolv.conf(5). Unknown keywords are skipped, as the resolver itself does; the
/// last of several `search` or `options` lines wins.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => config.searches = words.map(str::to_owned).collect(),
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_search_line_wins_and_comments_are_skipped() {
        let text = "# nameserver 1.1.1.1\nnameserver 10.0.0.1\nnameserver 10.0.0.2 \nsearch a\nsearch b c\noptions ndots:2 edns0\nsortlist x\n";
        let config = parse_resolv_conf(text);
        assert_eq!(config.servers, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(config.searches, ["b", "c"]);
        assert_eq!(config.options, ["ndots:2", "edns0"]);
    }
}
