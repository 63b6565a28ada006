"""Mails and messages to people: their content, and their delivery by SMTP, into a folder, to chats
and webhooks.

`sender` delivers what waits in the outbox; a transport reports whether the other side accepted a
message.
"""
