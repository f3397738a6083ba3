"""Bytes in and out: one small interface, and a bus for each broker behind it. `factory.open_bus` makes one."""

from headrace.connectors.bus.base import Bus, Message, Outgoing, Reader, StreamInfo

__all__ = ["Bus", "Message", "Outgoing", "Reader", "StreamInfo"]
