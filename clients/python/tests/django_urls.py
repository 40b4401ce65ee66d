"""The application that Django serves in the tests."""

from django.http import HttpRequest, StreamingHttpResponse
from django.urls import re_path

from tests.test_middleware import described


def hello(_: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(["hel", "lo"])


def attributes(request: HttpRequest) -> dict:
    return described(request.headers.get, request.path)


urlpatterns = [re_path("", hello)]
