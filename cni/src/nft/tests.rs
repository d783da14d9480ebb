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
fn looking_into_a_set_is_spelled_as_nft_spells_it() {
    same(
        "meta nfproto ipv4 ip saddr @pods-10.0.0.0/20 ip daddr != 10.0.0.0/20 ip daddr != 224.0.0.0/4 masquerade comment \"pods-10.0.0.0/20\"",
        vec![
            Match::Family { v4: true },
            Match::FromSet { v4: true, set: "pods-10.0.0.0/20".into() },
            Match::NotTo(net("10.0.0.0/20")),
            Match::NotTo(net("224.0.0.0/4")),
        ],
        Verdict::Masquerade,
        Some("pods-10.0.0.0/20"),
    );
    same(
        "meta nfproto ipv6 ip6 saddr @pods-fd00--/60 ip6 daddr != fd00::/60 masquerade",
        vec![
            Match::Family { v4: false },
            Match::FromSet { v4: false, set: "pods-fd00--/60".into() },
            Match::NotTo(net("fd00::/60")),
        ],
        Verdict::Masquerade,
        None,
    );
}

#[test]
fn sets_are_made_as_nft_makes_them() {
    let v4 = set::new_set("t", "pods-10.0.0.0/20", set::KeyType::Ipv4);
    assert_eq!(v4.attributes.as_slice(), golden("set pods-10.0.0.0/20 { type ipv4_addr; }"));
    let v6 = set::new_set("t", "pods-fd00--/60", set::KeyType::Ipv6);
    assert_eq!(v6.attributes.as_slice(), golden("set pods-fd00--/60 { type ipv6_addr; }"));
    let marks = set::new_set("t", "attachments", set::KeyType::Marks);
    let of_nft = golden("set attachments { type mark . mark . mark . mark . mark; }");
    assert_eq!(marks.attributes.as_slice(), of_nft);
    let gone = set::delete_set("t", "attachments");
    assert_eq!(gone.attributes.as_slice(), golden("delete set attachments"));
    assert_eq!([v4.kind, gone.kind].map(|kind| kind & 0xff), [9, 11], "NFT_MSG_NEWSET, NFT_MSG_DELSET");
}

#[test]
fn elements_come_and_go_as_those_of_nft() {
    let key = set::address_key("10.0.0.5".parse().unwrap());
    let v4 = set::new_element("t", "pods-10.0.0.0/20", &key, "who");
    assert_eq!(v4.attributes.as_slice(), golden("add element pods-10.0.0.0/20 { 10.0.0.5 comment \"who\" }"));
    let gone = set::delete_element("t", "pods-10.0.0.0/20", &key);
    assert_eq!(gone.attributes.as_slice(), golden("delete element pods-10.0.0.0/20 { 10.0.0.5 }"));
    let v6 = set::new_element("t", "pods-fd00--/60", &set::address_key("fd00::5".parse().unwrap()), "who");
    assert_eq!(v6.attributes.as_slice(), golden("add element pods-fd00--/60 { fd00::5 comment \"who\" }"));
    let owner = RuleOwner::read("0123456789abcdef-fedcba9876543210").unwrap();
    let marks = set::new_element("t", "attachments", &owner.key(1), "10.0.0.5/20 who");
    assert_eq!(
        marks.attributes.as_slice(),
        golden(
            "add element attachments { 0x01234567 . 0x89abcdef . 0xfedcba98 . 0x76543210 . 0x00000001 comment \"10.0.0.5/20 who\" }"
        )
    );
    assert_eq!(
        [v4.kind, gone.kind].map(|kind| kind & 0xff),
        [12, 14],
        "NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM"
    );
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
        let mut replies = NftReplies::new("x", 7);
        replies.receive_datagram(bytes).map(|()| replies.is_over)
    };
    assert!(take(&datagram(2, &[0; 4])).unwrap(), "all is well");
    assert!(!take(&datagram(99, &[0; 8])).unwrap(), "the verdict is yet to come");
    assert!(matches!(take(&datagram(2, &[0; 3])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(2, &[])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(3, &[0; 2])), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(4, &[])), Err(Error::Overrun { .. })));
    assert!(matches!(take(&datagram(2, &[0; 4])[..18]), Err(Error::Broken { .. })));
    assert!(matches!(take(&datagram(2, &[254, 255, 255, 255])), Err(Error::Refused { .. })));

    // A refusal is a verdict, too: no more is to come. One of another message is not.
    for (sequence, is_over) in [(7, true), (6, false)] {
        let mut replies = NftReplies::new("x", sequence);
        let refused = replies.receive_datagram(&datagram(2, &[254, 255, 255, 255])).unwrap_err();
        assert!(refused.is_missing());
        assert_eq!(replies.is_over, is_over);
    }
}
