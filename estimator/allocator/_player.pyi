from .player import Player as Player
