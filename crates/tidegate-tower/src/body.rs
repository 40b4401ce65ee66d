//! The body of a response that went through the limiter: the service's own, with a lease held until it ends, or a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_http::Held;

pin_project! {
    /// A response's body.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Admitted { #[pin] body: B, held: Held },
        Refused { text: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    /// The body of an admitted request's response. Its lease is released when the body ends, fails or is dropped.
    pub(crate) fn holding(body: B, held: Held) -> Self {
        LimitedBody { kind: Kind::Admitted { body, held } }
    }
}

impl<B> From<Bytes> for LimitedBody<B> {
    /// The body of a refusal.
    fn from(text: Bytes) -> Self {
        LimitedBody { kind: Kind::Refused { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Admitted { body, held } => {
                let frame = std::task::ready!(body.poll_frame(context));
                if !matches!(frame, Some(Ok(_))) {
                    *held = Held::default();
                }
                Poll::Ready(frame)
            }
            KindProjection::Refused { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Admitted { body, .. } => body.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Admitted { body, .. } => body.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
