"""Bytes in and out: one small interface, and a bus for each broker behind it."""

from headrace.connectors.bus.base import Bus, Message, Reader, StreamInfo

__all__ = ["Bus", "Message", "Reader", "StreamInfo"]
