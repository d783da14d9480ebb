//! The lists of CRI as streams: the same answers in pieces, so that no list is ever longer than a
//! message may be. Called by `cri`.

use std::pin::Pin;

use prost::Message;
use tokio_stream::Stream;
use tonic::{Response, Status};

/// Bytes of a piece, a fourth of what a message may have. By bytes, not by objects: a pod may have 256 KiB
/// of annotations.
const PIECE: usize = 4 << 20;

/// What a streaming RPC answers with.
pub(super) type ResponseChunks<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// `items` in pieces, of one object at least. An empty list is a stream without any.
pub(super) fn chunk_responses<I: Message + 'static, T: Send + 'static>(
    items: Vec<I>,
    wrap: impl Fn(Vec<I>) -> T,
) -> Response<ResponseChunks<T>> {
    let (mut made, mut piece, mut room) = (Vec::new(), Vec::new(), PIECE);
    for item in items {
        let own = item.encoded_len();
        // The field's number and its length come on top.
        let size = 1 + prost::length_delimiter_len(own) + own;
        if size > room && !piece.is_empty() {
            made.push(Ok(wrap(std::mem::take(&mut piece))));
            room = PIECE;
        }
        room = room.saturating_sub(size);
        piece.push(item);
    }
    if !piece.is_empty() {
        made.push(Ok(wrap(piece)));
    }
    Response::new(Box::pin(tokio_stream::iter(made)))
}

#[cfg(test)]
mod tests {
    use gantry_proto::cri;
    use tokio_stream::StreamExt;

    use super::*;

    fn pod(bytes: usize) -> cri::PodSandbox {
        cri::PodSandbox {
            annotations: [("a".to_owned(), "x".repeat(bytes))].into(),
            ..cri::PodSandbox::default()
        }
    }

    /// 256 objects were one piece: 70 pods with 250 KB of annotations each were one that no client takes.
    #[tokio::test]
    async fn a_list_of_large_objects_comes_in_pieces_that_a_message_can_hold_and_whole() {
        let items: Vec<_> = (0..70).map(|_| pod(250_000)).chain([pod(5 << 20), pod(1)]).collect();
        let answer =
            chunk_responses(items, |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes });
        let (mut stream, mut counts) = (answer.into_inner(), Vec::new());
        while let Some(piece) = stream.next().await {
            let piece = piece.unwrap();
            let count = piece.pod_sandboxes.len();
            assert!(count == 1 || piece.encoded_len() <= PIECE, "{count} are {}", piece.encoded_len());
            counts.push(count);
        }
        assert_eq!(counts, [16, 16, 16, 16, 6, 1, 1]);
        assert!(
            chunk_responses(Vec::<cri::PodSandbox>::new(), |piece| piece).into_inner().next().await.is_none()
        );
    }
}
