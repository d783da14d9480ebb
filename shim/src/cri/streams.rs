//! The lists of CRI as streams: the same answers in pieces, so that no list is ever longer than a
//! message may be. Called by `cri`.

use std::pin::Pin;

use tokio_stream::Stream;
use tonic::{Response, Status};

/// Objects in one piece: at a few KB each far below the 16 MiB of a message.
const PIECE: usize = 256;

/// What a streaming RPC answers with.
pub(super) type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// `items` in pieces. An empty list is a stream without any.
pub(super) fn pieces<I: Send + 'static, T: Send + 'static>(
    items: Vec<I>,
    wrap: impl Fn(Vec<I>) -> T,
) -> Response<Pieces<T>> {
    let (mut items, mut made) = (items.into_iter().peekable(), Vec::new());
    while items.peek().is_some() {
        made.push(Ok(wrap(items.by_ref().take(PIECE).collect())));
    }
    Response::new(Box::pin(tokio_stream::iter(made)))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_long_list_comes_in_pieces_and_whole() {
        let mut stream = pieces((0..PIECE * 2 + 1).collect(), |piece| piece).into_inner();
        let mut sizes = Vec::new();
        while let Some(piece) = stream.next().await {
            sizes.push(piece.unwrap().len());
        }
        assert_eq!(sizes, [PIECE, PIECE, 1]);
        assert!(pieces(Vec::<u8>::new(), |piece| piece).into_inner().next().await.is_none());
    }
}
