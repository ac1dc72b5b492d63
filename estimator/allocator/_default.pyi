from .default import DefaultAllocator as DefaultAllocator
