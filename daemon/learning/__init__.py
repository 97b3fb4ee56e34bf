"""Learning on site: which model scores, the night's training, drift, and the scoreboard."""
