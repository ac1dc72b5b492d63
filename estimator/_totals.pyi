from .totals import living as living
from .totals import peaks as peaks
