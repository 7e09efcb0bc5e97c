"""A listener to a training that remembers what it is told, and may stop it by Ctrl-C after some steps."""

import os
import signal

from smmil.train import Progress


class Listener(Progress):
    def __init__(self, stop_at=None):
        self.heard, self.stop_at, self.steps = [], stop_at, 0

    def message(self, text):
        self.heard.append(text)

    def step_done(self, epoch, step, loss):
        self.steps += 1
        if self.steps == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)
