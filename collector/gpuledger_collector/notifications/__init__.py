"""Sending what waits in the outbox: mails over SMTP or into a folder, chat and webhooks; each message once.

`sender` takes due messages one by one and gives each to the transport of its channel; a transport says how far it got
in the words of `delivery`.
"""
