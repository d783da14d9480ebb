//! Our messages against what `nft` itself sends, byte for byte (`golden.txt`), and framing against broken datagrams.

use super::*;

fn golden(rule: &str) -> Vec<u8> {
    let mut lines = include_str!("golden.txt").lines().skip_while(|line| *line != rule).skip(1);
    let hex = lines.next().unwrap_or_else(|| panic!("golden.txt has no rule {rule:?}"));
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn same(rule: &str, matches: Vec<Match>, verdict: Verdict, comment: Option<&str>) {
    let ours = message::new_rule("t", "a", &Rule { matches, verdict }, comment);
    assert_eq!(ours.attributes.as_slice(), golden(rule), "{rule}");
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

#[test]
fn forwarding_is_spelled_as_nft_spells_it() {
    same("fib daddr type local jump hp", vec![Match::ToThisHost], Verdict::Jump("hp"), None);
    same(
        "meta nfproto ipv4 ip daddr 192.0.2.1 tcp dport 8080 dnat ip to 10.0.0.5:80",
        vec![
            Match::Family { v4: true },
            Match::To(net("192.0.2.1/32")),
            Match::Port { protocol: 6, port: 8080 },
        ],
        Verdict::Forward { to: "10.0.0.5".parse().unwrap(), port: 80 },
        None,
    );
    same(
        "meta nfproto ipv6 udp dport 53 dnat ip6 to [fd00::5]:5353",
        vec![Match::Family { v4: false }, Match::Port { protocol: 17, port: 53 }],
        Verdict::Forward { to: "fd00::5".parse().unwrap(), port: 5353 },
        None,
    );
}

#[test]
fn masquerading_is_spelled_as_nft_spells_it() {
    same(
        "meta nfproto ipv4 ip saddr 10.0.0.0/20 ip daddr 10.0.0.5 tcp dport 80 ct status dnat ct original proto-dst 8080 masquerade",
        vec![
            Match::Family { v4: true },
            Match::From(net("10.0.0.0/20")),
            Match::To(net("10.0.0.5/32")),
            Match::Port { protocol: 6, port: 80 },
            Match::ForwardedFrom { port: 8080 },
        ],
        Verdict::Masquerade,
        None,
    );
    same(
        "meta nfproto ipv6 ip6 saddr fd00::5 ip6 daddr != fd00::/60 ip6 daddr != ff00::/12 masquerade comment \"who\"",
        vec![
            Match::Family { v4: false },
            Match::From(net("fd00::5/128")),
            Match::NotTo(net("fd00::/60")),
            Match::NotTo(net("ff00::/12")),
        ],
        Verdict::Masquerade,
        Some("who"),
    );
}

#[test]
fn dropping_is_spelled_as_nft_spells_it() {
    same(
        "iifname != \"lo\" meta nfproto ipv4 ip daddr 127.0.0.0/12 drop",
        vec![Match::NotFromLoopback, Match::Family { v4: true }, Match::To(net("127.0.0.0/12"))],
        Verdict::Drop,
        None,
    );
}

#[test]
fn chains_are_hooked_as_nft_hooks_them() {
    let ours = message::new_chain("t", "pre", Some(Hook::DstnatPrerouting));
    assert_eq!(ours.attributes.as_slice(), golden("chain pre { type nat hook prerouting priority dstnat; }"));
}

#[test]
fn broken_datagrams_end_reading() {
    for bytes in [&[][..], &[0; 15], &[0; 16], &[255; 16], &[12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        assert!(ReplyMessage::parse_first(bytes).is_none(), "{bytes:?}");
    }
    let whole = [20, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 254, 255, 255, 255];
    let message = ReplyMessage::parse_first(&whole).unwrap();
    let code = message.code();
    assert_eq!((message.kind, message.sequence, code, message.aligned), (NLMSG_ERROR, 7, Some(-2), 20));
    assert!(ReplyMessage::parse_first(&whole[..19]).is_none());
}

#[test]
fn a_verdict_that_is_cut_off_or_lost_is_no_success() {
    let datagram = |kind: u8, payload: &[u8]| {
        let mut bytes =
            vec![u8::try_from(16 + payload.len()).unwrap(), 0, 0, 0, kind, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(payload);
        bytes
    };
    let take = |bytes: &[u8]| {
        NftReplies { what: "x", sequence: 7, list: Vec::new(), parts: 0, consistent: true }
            .receive_datagram(bytes)
    };
    assert!(take(&datagram(2, &[0; 4])).unwrap(), "all is well");
    assert!(!take(&datagram(99, &[0; 8])).unwrap(), "the verdict is yet to come");
    assert!(matches!(take(&datagram(2, &[0; 3])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(2, &[])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(3, &[0; 2])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(4, &[])), Err(Error::Overrun { .. })));
    assert!(matches!(take(&datagram(2, &[0; 4])[..18]), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(2, &[254, 255, 255, 255])), Err(Error::Refused { .. })));
}
