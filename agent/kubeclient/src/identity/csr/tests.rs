//! Requests without an API server.

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequestCondition as Condition, CertificateSigningRequestStatus as Status,
};

use super::*;

fn template() -> Template {
    Template { node: "n1".to_owned(), names: Names::default() }
}

#[test]
fn the_name_of_a_request_depends_on_key_node_and_use_alone() {
    let (one, two) = (new_key().unwrap(), new_key().unwrap());
    let name = |key, signer| digested_name(&template(), key, signer);
    assert_eq!(name(&one, Signer::Client), name(&one, Signer::Client));
    assert_ne!(name(&one, Signer::Client), name(&two, Signer::Client));
    assert_ne!(name(&one, Signer::Client), name(&one, Signer::Serving));
    let text = name(&one, Signer::Client);
    assert!(text.starts_with("node-csr-") && text.len() == "node-csr-".len() + 43, "{text}");
}

#[test]
fn a_request_is_known_by_its_key() {
    let (one, two) = (new_key().unwrap(), new_key().unwrap());
    let request = request(&template(), &one).unwrap();
    assert!(is_of(request.as_bytes(), &one));
    assert!(!is_of(request.as_bytes(), &two));
    assert!(!is_of(b"nonsense", &one));
}

#[test]
fn only_an_approved_request_with_a_certificate_is_issued() {
    let asked = PendingCsr { name: "c".to_owned(), uid: Some("u".to_owned()) };
    let with = |uid: &str, kind: &str, certificate: &str| CertificateSigningRequest {
        metadata: ObjectMeta { uid: Some(uid.to_owned()), ..ObjectMeta::default() },
        status: Some(Status {
            certificate: Some(ByteString(certificate.as_bytes().to_vec())),
            conditions: Some(vec![Condition { type_: kind.to_owned(), ..Condition::default() }]),
        }),
        ..CertificateSigningRequest::default()
    };
    assert_eq!(judge(&asked, &with("u", "Approved", "x")).unwrap(), CsrStatus::Issued(b"x".to_vec()));
    assert_eq!(judge(&asked, &with("u", "Approved", "")).unwrap(), CsrStatus::Pending);
    assert_eq!(judge(&asked, &with("u", "Other", "x")).unwrap(), CsrStatus::Pending);
    assert!(matches!(judge(&asked, &with("u", "Denied", "x")), Err(Error::Refused(_))));
    assert!(matches!(judge(&asked, &with("u", "Failed", "x")), Err(Error::Refused(_))));
    assert!(matches!(judge(&asked, &with("v", "Approved", "x")), Err(Error::Replaced(_))));
}
