"""Show, evaluate or export a trained policy: `python play.py`. See `python play.py --help`."""

from gpusim_rl.commands.play import main

if __name__ == "__main__":
    main()
