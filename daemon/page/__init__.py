"""The operator's page and its JSON API: handlers, static files, and the view they show."""
